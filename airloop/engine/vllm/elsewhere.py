"""Servers of vLLM that agents on other nodes keep (airloop/cluster): each is started there, and started again. How they
are stands on the board, a file that every learner sees; whoever reaches the nodes writes it.
"""

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

BOARD = "AIR_SERVERS"  # in a rank's environment: the board's path
API_KEY = "VLLM_API_KEY"  # there, and in that of the servers


@dataclass(frozen=True)
class Posted:
    """One server, as the board has it."""

    url: str
    node: str  # its name
    log: str  # a file that every learner sees
    starts: int = 1
    code: int = 0  # with which the process before ended
    gone: str = ""  # why it will not come back
    with_node: bool = False  # its node is: what it printed last says nothing of that


class Board:
    """Written whole, by one; read by all ranks. The first rank leaves beside it which server is to be ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def given(cls) -> Board | None:
        """That of this run, where nodes have servers for it."""
        return cls(Path(path)) if (path := os.environ.get(BOARD)) else None

    def post(self, host: str, servers: Sequence[Posted]) -> None:
        """`host`: the address of the first rank's machine by which servers reach it."""
        write_json(self.path, {"host": host, "servers": [asdict(server) for server in servers]})

    def ask_end(self, url: str) -> None:
        """Of the process that is there now, not of one that takes its place."""
        for number, one in enumerate(self.servers):
            if one.url == url:
                write_json(self._asked(number), one.starts)

    def take_asked(self, number: int) -> int | None:
        """Which process of a server is to be ended, by the number of its start; None where nobody has asked."""
        with contextlib.suppress(FileNotFoundError):
            asked = int(self._asked(number).read_text(encoding="utf-8"))
            self._asked(number).unlink()
            return asked
        return None

    def _asked(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-end-{number}.json")

    @property
    def host(self) -> str:
        return str(json.loads(self.path.read_text(encoding="utf-8"))["host"])

    @property
    def servers(self) -> list[Posted]:
        """Nothing where it cannot be read just now, or has been taken away with the run."""
        with contextlib.suppress(OSError):
            return [Posted(**one) for one in json.loads(self.path.read_text(encoding="utf-8"))["servers"]]
        return []


@dataclass(eq=False)
class NodeServer(VllmServer):
    """One of them: not ours to start or to end."""

    board: Board | None = None
    kept: ClassVar[bool] = True

    def start(self) -> None:
        """It is: from now on the process that is there counts."""
        if posted := self._posted():
            self.starts = posted.starts

    @property
    def _ready_s(self) -> float:
        return READY_S

    async def ready(self) -> None:
        self.forget()  # whatever it had: it may be another process than before
        await super().ready()

    def ended(self) -> int | None:
        """Of the process that we know, where another has taken its place: that one is admitted as if it were new."""
        posted = self._posted()
        return posted.code if posted and posted.starts != self.starts else None

    def gone(self) -> str:
        posted = self._posted()
        return f"{posted.gone} (node {posted.node})" if posted and posted.gone else ""

    def tail(self) -> str:
        posted = self._posted()
        return "" if posted and posted.with_node else super().tail()

    def _posted(self) -> Posted | None:
        return next((one for one in self.board.servers if one.url == self.url), None) if self.board else None

    async def end(self) -> None:
        """By its node. One that cannot be reached has ended, or what is between us has: its node knows which."""
        if self.board and not self.shared and not self.gone() and await self.is_healthy(ANSWER_S):
            self.board.ask_end(self.url)

    async def close(self) -> None:
        self.board = None  # it ends with the run
        self.forget()
        await super().close()


def servers_on(board: Board, key: str, context: int) -> list[VllmServer]:
    return [NodeServer(one.url, key, API_KEY, context, log=Path(one.log), board=board) for one in board.servers]
