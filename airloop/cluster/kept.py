"""A server of vLLM that a node's agent keeps: started there, watched, and started again when it has ended."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.config import Config
from airloop.engine.vllm.engine import STARTS
from airloop.engine.vllm.server import VllmServer
from airloop.engine.vllm.start import Spot, base_here, let_pull, own_server
from airloop.errors import AirError

Tell = Callable[[str, str], None]  # kind (event, line, exit), text
PIECE = 1 << 20  # bytes of its output that are told at once


@dataclass(frozen=True)
class ServerOrder:
    """What one is started with. It listens on `host`, an address of its node, and nowhere else."""

    config: dict[str, Any]  # the run's
    dtype: str
    number: int  # of all servers of the run
    host: str
    port: int
    gpu: str | None  # as CUDA knows it on that node
    key: str  # for its requests
    adapters_key: str  # by which it pulls adapters

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class KeptServer:
    """What it prints is told by lines; that it is started again, and that it cannot be started, as events; that it has
    ended for good as its exit."""

    def __init__(self, order: ServerOrder, place: Path, finding: threading.Lock, tell: Tell) -> None:
        """`finding` is held while the model is looked for: servers of one node need it once."""
        self._order, self._place, self._finding, self._tell = order, place, finding, tell
        self._server: VllmServer | None = None
        self._read = 0  # bytes of its log
        self._over = False
        threading.Thread(target=self._begin, name=f"air-server-{order.number}", daemon=True).start()

    def look(self) -> None:
        """What it has printed, and whether it has ended."""
        if self._server is None or self._over:
            return
        code = self._server.ended()
        self._follow(whole=code is not None)
        if code is None:
            return
        if self._server.starts >= STARTS:
            self._over = True
            self._tell("exit", str(code))
            return
        self._server.start()
        self._tell("event", json.dumps(["started", self._server.starts, code]))

    def replace(self, starts: int) -> None:
        """End the process of that start, to be started again; another one is left alone."""
        if self._server is not None and self._server.starts == starts:
            self._server.let_go()

    def end(self) -> None:
        """Its keeper sees to it; `wait` waits for that."""
        self._over = True
        if self._server is not None:
            self._server.let_go()

    def wait(self, wait_s: float) -> None:
        if self._server is not None:
            self._server.wait(wait_s)

    def _begin(self) -> None:
        order = self._order
        try:
            with self._finding:
                config = Config.model_validate(order.config)
                model = base_here(config.model.name, self._place)
                spot = Spot(order.number, order.gpu, order.host, order.port, order.key)
                server = own_server(config, order.dtype, model, self._place, spot)
                let_pull(server, self._place, order.adapters_key)
            server.start()
        except AirError as error:
            self._tell("event", json.dumps(["failed", f"{error.problem} ({error.fix})"]))
            return
        except Exception as error:
            self._tell("event", json.dumps(["failed", f"{type(error).__name__}: {error}"]))
            return
        self._server = server
        if self._over:  # it was ended meanwhile
            server.let_go()

    def _follow(self, whole: bool) -> None:
        """`whole`: nothing more will come, so that its last line needs no end."""
        assert self._server is not None and self._server.log is not None
        with contextlib.suppress(FileNotFoundError), self._server.log.open("rb") as log:
            log.seek(self._read)
            while piece := log.read(PIECE):
                used = piece if whole else piece[: piece.rfind(b"\n") + 1]
                if len(piece) == PIECE:  # there is more; a line that is longer comes in parts
                    used = used or piece
                for line in used.decode(errors="replace").splitlines():
                    self._tell("line", line)
                self._read += len(used)
                if len(used) < len(piece) < PIECE:
                    return
                log.seek(self._read)
