"""vLLM servers that agents on other nodes supervise (airloop/cluster), which start and restart them. Their status is in
a file that every learner sees, written by the process that is connected to the nodes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from airloop.engine.vllm.server import ANSWER_S, READY_S, VllmServer
from airloop.files import write_json

STATUS_FILE_VARIABLE = "AIR_SERVERS"  # in a rank's environment: the path of the status file
API_KEY = "VLLM_API_KEY"  # there, and in that of the servers


@dataclass(frozen=True)
class ServerStatus:
    """One server, as it stands in the status file."""

    url: str
    node: str  # its name
    log: str  # a file that every learner sees
    starts: int = 1
    code: int = 0  # with which the process before ended
    gone: str = ""  # why it will not come back
    with_node: bool = False  # its node was lost: the end of its log does not say why


@dataclass(frozen=True)
class EndRequest:
    """For the process of that start, not for one that is started later. `silent`: it does not answer the first rank,
    whose network may be at fault; so it is ended only where it does not answer its own node, either."""

    starts: int
    silent: bool = False


class ServerStatusFile:
    """Written as a whole, by one process; read by all ranks. In files beside it the first rank requests that a server
    be ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_environment(cls) -> ServerStatusFile | None:
        """The status file of this run, where nodes have servers for it."""
        return cls(Path(path)) if (path := os.environ.get(STATUS_FILE_VARIABLE)) else None

    def write(self, host: str, servers: Sequence[ServerStatus]) -> None:
        """`host`: the address of the first rank's machine by which servers reach it."""
        write_json(self.path, {"host": host, "servers": [asdict(server) for server in servers]})

    def request_end(self, url: str, request: EndRequest) -> None:
        for number, one in enumerate(self.servers):
            if one.url == url:
                write_json(self._end_request(number), asdict(request))

    def take_end_request(self, number: int) -> EndRequest | None:
        with contextlib.suppress(FileNotFoundError):
            asked = EndRequest(**json.loads(self._end_request(number).read_text(encoding="utf-8")))
            self._end_request(number).unlink()
            return asked
        return None

    def _end_request(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-end-{number}.json")

    @property
    def host(self) -> str:
        return str(json.loads(self.path.read_text(encoding="utf-8"))["host"])

    @property
    def servers(self) -> list[ServerStatus]:
        """Empty where the file cannot be read just now, or was removed with the run."""
        with contextlib.suppress(OSError):
            return [ServerStatus(**one) for one in json.loads(self.path.read_text(encoding="utf-8"))["servers"]]
        return []


@dataclass(eq=False)
class NodeServer(VllmServer):
    """A server on another node, which we neither start nor end."""

    status_file: ServerStatusFile | None = None
    node_managed: ClassVar[bool] = True

    def start(self) -> None:
        """Its node has started it: from now on its current process counts."""
        if status := self._status():
            self.starts = status.starts

    @property
    def _ready_s(self) -> float:
        return READY_S

    async def ready(self) -> None:
        self.forget()  # it may be another process than before
        await super().ready()

    def ended(self) -> int | None:
        """The exit code of the process that we know, where another has replaced it: that one is admitted as a new
        server."""
        status = self._status()
        return status.code if status and status.starts != self.starts else None

    def lost_for_good(self) -> str:
        status = self._status()
        return f"{status.gone} (node {status.node})" if status and status.gone else ""

    def tail(self) -> str:
        status = self._status()
        return "" if status and status.with_node else super().tail()

    def _status(self) -> ServerStatus | None:
        return (
            next((one for one in self.status_file.servers if one.url == self.url), None) if self.status_file else None
        )

    async def end(self) -> None:
        """Asks its node to end it. What has replaced the process that we know is another one, which nobody has found
        fault with."""
        here = not self.shared and not self.lost_for_good() and self.ended() is None
        if here and self.status_file:
            silent = not await self.is_healthy(ANSWER_S)
            if self.status_file:  # the run has not ended meanwhile
                self.status_file.request_end(self.url, EndRequest(self.starts, silent))

    async def close(self) -> None:
        self.status_file = None  # it ends with the run
        self.forget()
        await super().close()


def servers_on(status_file: ServerStatusFile, key: str, context: int) -> list[VllmServer]:
    return [
        NodeServer(one.url, key, API_KEY, context, log=Path(one.log), status_file=status_file)
        for one in status_file.servers
    ]
