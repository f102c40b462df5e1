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

from airloop.engine.vllm.server import READY_S, VllmServer
from airloop.files import write_json

BOARD = "AIR_SERVERS"  # in a rank's environment: the board's path


@dataclass(frozen=True)
class Posted:
    """One server, as the board has it."""

    url: str
    node: str  # its name
    log: str  # a file that every learner sees
    starts: int = 1
    gone: str = ""  # why it will not come back


class Board:
    """Written whole, by one; read by all ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def given(cls) -> Board | None:
        """That of this run, where nodes have servers for it."""
        return cls(Path(path)) if (path := os.environ.get(BOARD)) else None

    def post(self, host: str, servers: Sequence[Posted]) -> None:
        """`host`: the address of the first rank's machine by which servers reach it."""
        write_json(self.path, {"host": host, "servers": [asdict(server) for server in servers]})

    @property
    def host(self) -> str:
        return str(json.loads(self.path.read_text(encoding="utf-8"))["host"])

    @property
    def servers(self) -> list[Posted]:
        """Nothing where it has just been taken away, with the run."""
        with contextlib.suppress(FileNotFoundError):
            return [Posted(**one) for one in json.loads(self.path.read_text(encoding="utf-8"))["servers"]]
        return []


@dataclass(eq=False)
class NodeServer(VllmServer):
    """One of them: not ours to start or to end."""

    board: Board | None = None

    @property
    def _ready_s(self) -> float:
        return READY_S

    async def ready(self) -> None:
        self.forget()  # whatever it had: it may be another process than before
        await super().ready()

    def gone(self) -> str:
        posted = self.board.servers if self.board else []
        return next((f"{one.gone} (node {one.node})" for one in posted if one.url == self.url and one.gone), "")

    async def close(self) -> None:
        self.forget()  # it ends with the run: nothing is to be taken from it
        await super().close()


def servers_on(board: Board, key: str, key_name: str, context: int) -> list[VllmServer]:
    return [NodeServer(one.url, key, key_name, context, log=Path(one.log), board=board) for one in board.servers]
