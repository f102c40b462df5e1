"""The agent on each node: it starts the node's ranks as on one machine, and buffers their events until they are polled.

Calls come over a network that may lose an answer, so each may come twice: a rank is started once, a signal is sent
once, and events are kept until the next call acknowledges them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.cluster.network import free_ports, route_to
from airloop.launch.base import Handle, RankSpec
from airloop.launch.local import LocalLauncher
from airloop.own_code import content_digest
from airloop.version import __version__

if TYPE_CHECKING:
    from airloop.cluster.supervised_server import SupervisedServer

# Sequence number, a rank's number or a server's address, kind (event, line, exit), text.
NodeEvent = tuple[int, int | str, str, str]
# Between two checks of the ranks while there are no events.
LOOK_S = 0.1
# A rank's last lines may still be in its pipe when it has ended: its end is reported after this time.
OUTPUT_GRACE_S = 0.3
# For all servers to end: their process guards wait for 5 s, and then kill them.
END_S = 8.0


def versions() -> dict[str, str]:
    """What must be the same on every node, for ranks to do the same arithmetic in the same order."""
    found = {"air": __version__, "Python": platform.python_version()}
    for package in ("torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    # Checkouts of one version may differ.
    return {**found, "code of air": content_digest(str(Path(__file__).absolute().parents[1]))[:12]}


class NodeAgent:
    """Runs on a node; its methods are called by the launcher, over the network."""

    def __init__(self, environment: Mapping[str, str | None], folder: str) -> None:
        """`environment`: variables that are to be as they are where the run was started. `folder`: the directory it
        was started in, taken where this machine has it."""
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._launcher = LocalLauncher()
        self._lock = threading.RLock()  # of the ranks: calls come in several threads
        self._ranks: dict[int, Handle] = {}
        self._servers: dict[str, SupervisedServer] = {}  # by address
        self._folder: Path | None = None  # their files
        self._model_lock = threading.Lock()  # of their model
        self._ended: dict[int, float] = {}  # by rank, when its end was seen; forgotten ranks are not watched
        self._sent: set[int] = set()  # numbers of signals
        self._events: list[NodeEvent] = []
        self._sequence_number = 0
        self._changed = threading.Condition()

    def facts(self, head: str) -> dict[str, Any]:
        """What the launcher needs to know of this machine."""
        route = route_to(head)
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        return {"versions": versions(), "address": route.address, "interface": route.interface, "gpus": gpus}

    def read(self, path: str) -> str | None:
        """A file's text, as this machine sees it."""
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError:
            return None

    def free_ports(self, address: str, count: int) -> list[int]:
        return free_ports(address, count)

    def prepare(self, device: str) -> None:
        """For the first rank, on all nodes at the same time: to import torch takes seconds."""
        with self._lock:
            self._launcher.prepare(device)

    def start(self, spec: dict[str, Any]) -> int:
        """The rank's process id."""
        rank = int(spec["rank"])
        with self._lock:
            if rank not in self._ranks:
                rank_spec = RankSpec(**spec)
                self._ranks[rank] = self._launcher.spawn(
                    rank_spec, lambda kind, text: self._add_event(rank, kind, text)
                )
            return self._ranks[rank].pid

    def serve(self, spec: dict[str, Any]) -> None:
        """Starts a vLLM server, which is supervised from now on."""
        from airloop.cluster.supervised_server import ServerSpec, SupervisedServer
        from airloop.engine.vllm.start import new_run_folder

        server_spec = ServerSpec(**spec)
        with self._lock:
            if server_spec.url not in self._servers:
                self._folder = self._folder or new_run_folder()
                on_output = functools.partial(self._add_event, server_spec.url)
                self._servers[server_spec.url] = SupervisedServer(
                    server_spec, self._folder, self._model_lock, on_output
                )

    def replace_server(self, url: str, request: dict[str, Any]) -> None:
        from airloop.engine.vllm.remote_servers import EndRequest

        with self._lock:
            self._servers[url].replace(EndRequest(**request))

    def signal(self, number: int, rank: int, signal: int) -> None:
        """`number`: of this call, so that a repeated call sends no second signal."""
        with self._lock:
            if number not in self._sent:
                self._sent.add(number)
                self._ranks[rank].send_signal(signal)

    def events(self, seen: int, wait_s: float) -> list[NodeEvent]:
        """The events after that number; waits if there is none."""
        until = time.monotonic() + wait_s
        with self._changed:
            self._events = [one for one in self._events if one[0] > seen]
        while True:
            self._watch()
            with self._changed:
                if self._events or time.monotonic() > until:
                    return list(self._events)
                self._changed.wait(LOOK_S)

    def close(self) -> None:
        with self._lock:
            self._launcher.close()
            for server in self._servers.values():
                server.end()
            until = time.monotonic() + END_S
            for server in self._servers.values():
                server.wait(max(0.0, until - time.monotonic()))  # one that still runs would go on writing there
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        """Checks for ranks and servers that have ended."""
        with self._lock:
            for server in self._servers.values():
                server.look()
            codes = {rank: process.poll() for rank, process in self._ranks.items()}
        now = time.monotonic()
        for rank, code in codes.items():
            if code is not None and now - self._ended.setdefault(rank, now) > OUTPUT_GRACE_S:
                self._ended[rank] = float("inf")  # reported once
                self._add_event(rank, "exit", str(code))

    def _add_event(self, who: int | str, kind: str, text: str) -> None:
        with self._changed:
            self._sequence_number += 1
            self._events.append((self._sequence_number, who, kind, text))
            self._changed.notify_all()


def as_dict(spec: RankSpec) -> dict[str, Any]:
    """A spec as plain values, so that a node with another version can be refused before it fails."""
    return asdict(spec)
