"""A vLLM server that a node's agent supervises: starts, watches, and restarts when it has ended."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from airloop.config import Config
from airloop.engine.vllm.engine import STARTS
from airloop.engine.vllm.remote_servers import EndRequest
from airloop.engine.vllm.server import VllmServer
from airloop.engine.vllm.start import Location, base_model_here, enable_adapter_pull, own_server
from airloop.errors import AirError

OnEvent = Callable[[str, str], None]  # kind (event, line, exit), text
PIECE = 1 << 20  # bytes of its output that are read at once
SILENT_S = 30.0  # without an answer to its own node: it hangs


@dataclass(frozen=True)
class ServerSpec:
    """The parameters of a server. It listens only on `host`, an address of its node."""

    config: dict[str, Any]  # the run's
    dtype: str
    number: int  # among all servers of the run
    host: str
    port: int
    gpu: str | None  # as CUDA knows it on that node
    key: str  # for its requests
    adapters_key: str  # by which it pulls adapters

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class SupervisedServer:
    """Reports its output as lines; a restart, or a failed start, as events; and its final end as an exit."""

    def __init__(self, spec: ServerSpec, place: Path, model_lock: threading.Lock, on_event: OnEvent) -> None:
        """`model_lock` is held while the model is found or fetched: the servers of one node need it once."""
        self._spec, self._place, self._model_lock, self._on_event = spec, place, model_lock, on_event
        self._server: VllmServer | None = None
        self._start_lock = threading.Lock()  # while the number of starts and the process are not of the same start
        self._read = 0  # bytes of its log
        self._over = False
        threading.Thread(target=self._begin, name=f"air-server-{spec.number}", daemon=True).start()

    def look(self) -> None:
        """Reads its new output, and checks whether it has ended."""
        if self._server is None or self._over:
            return
        code = self._server.ended()
        self._follow(whole=code is not None)
        if code is None:
            return
        if self._server.starts >= STARTS:
            self._over = True
            self._on_event("exit", str(code))
            return
        with self._start_lock:
            self._server.start()
        self._on_event("event", json.dumps(["started", self._server.starts, code]))

    def replace(self, request: EndRequest) -> None:
        """End the process of that start, to be started again; another one is left alone."""
        if request.silent:
            threading.Thread(target=self._replace_if_silent, args=(request,), daemon=True).start()
            return
        with self._start_lock:
            if self._server is not None and self._server.starts == request.starts:
                self._server.close_stdin()

    def _replace_if_silent(self, request: EndRequest) -> None:
        """A process that stands still keeps its port open: it takes connections, and answers none."""
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{self._spec.url}/health", timeout=SILENT_S, trust_env=False)
            return
        self.replace(EndRequest(request.starts))

    def end(self) -> None:
        """Tells its process guard to end it; `wait` waits for that."""
        self._over = True
        if self._server is not None:
            self._server.close_stdin()

    def wait(self, wait_s: float) -> None:
        if self._server is not None:
            self._server.wait(wait_s)

    def _begin(self) -> None:
        spec = self._spec
        try:
            with self._model_lock:
                config = Config.model_validate(spec.config)
                model = base_model_here(config.model.name, self._place)
                location = Location(spec.number, spec.gpu, spec.host, spec.port, spec.key)
                server = own_server(config, spec.dtype, model, self._place, location)
                enable_adapter_pull(server, self._place, spec.adapters_key)
            with self._start_lock:  # whoever has seen it up and wants it replaced waits until it is known here
                server.start()
                self._server = server
        except AirError as error:
            self._on_event("event", json.dumps(["failed", f"{error.problem} ({error.fix})"]))
            return
        except Exception as error:
            self._on_event("event", json.dumps(["failed", f"{type(error).__name__}: {error}"]))
            return
        if self._over:  # it was ended meanwhile
            server.close_stdin()

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
                    self._on_event("line", line)
                self._read += len(used)
                if len(used) < len(piece) < PIECE:
                    return
                log.seek(self._read)
