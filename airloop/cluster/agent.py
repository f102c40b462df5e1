"""What runs on each node: it starts the node's ranks as on one machine, and keeps what they tell until it is asked.

Calls come over a network that may swallow an answer, so that each may come twice: a rank is started once, a signal is
sent once, and news are kept until the next call says that they have arrived.
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

from airloop.cluster.network import free_ports, way_to
from airloop.launch.base import Handle, Order
from airloop.launch.local import LocalLauncher
from airloop.own_code import content_digest
from airloop.version import __version__

if TYPE_CHECKING:
    from airloop.cluster.kept import KeptServer

# Number, a rank's number or a server's address, kind (event, line, exit), text.
News = tuple[int, int | str, str, str]
# Between two looks at the ranks while nothing is told.
LOOK_S = 0.1
# A rank's last lines may still be in its pipe when it has ended: so long its end is not news.
LAST_WORDS_S = 0.3
# For all servers to end: their keepers ask for 5 s, and then do not ask any more.
END_S = 8.0


def versions() -> dict[str, str]:
    """What must be the same on every node, for ranks to do the same arithmetic in the same order."""
    found = {"air": __version__, "Python": platform.python_version()}
    for package in ("torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    # Checkouts of one version may differ.
    return {**found, "code of air": content_digest(str(Path(__file__).absolute().parents[1]))[:12]}


class Agent:
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
        self._servers: dict[str, KeptServer] = {}  # by address
        self._place: Path | None = None  # their files
        self._finding = threading.Lock()  # of their model
        self._ended: dict[int, float] = {}  # by rank, when its end was seen; forgotten ranks are not watched
        self._sent: set[int] = set()  # numbers of signals
        self._news: list[News] = []
        self._number = 0
        self._some = threading.Condition()

    def facts(self, head: str) -> dict[str, Any]:
        """What the one who gives orders must know of this machine."""
        way = way_to(head)
        gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        return {"versions": versions(), "address": way.address, "interface": way.interface, "gpus": gpus}

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

    def start(self, order: dict[str, Any]) -> int:
        """The rank's process id."""
        rank = int(order["rank"])
        with self._lock:
            if rank not in self._ranks:
                given = Order(**order)
                self._ranks[rank] = self._launcher.spawn(given, lambda kind, text: self._tell(rank, kind, text))
            return self._ranks[rank].pid

    def serve(self, order: dict[str, Any]) -> None:
        """A server of vLLM, which is kept from now on."""
        from airloop.cluster.kept import KeptServer, ServerOrder
        from airloop.engine.vllm.start import new_place

        given = ServerOrder(**order)
        with self._lock:
            if given.url not in self._servers:
                self._place = self._place or new_place()
                tell = functools.partial(self._tell, given.url)
                self._servers[given.url] = KeptServer(given, self._place, self._finding, tell)

    def replace_server(self, url: str, starts: int) -> None:
        with self._lock:
            self._servers[url].replace(starts)

    def signal(self, number: int, rank: int, signal: int) -> None:
        """`number`: of this call, so that the same one is not made twice."""
        with self._lock:
            if number not in self._sent:
                self._sent.add(number)
                self._ranks[rank].send_signal(signal)

    def news(self, seen: int, wait_s: float) -> list[News]:
        """What came after the news of that number, waited for if there is none."""
        until = time.monotonic() + wait_s
        with self._some:
            self._news = [one for one in self._news if one[0] > seen]
        while True:
            self._look()
            with self._some:
                if self._news or time.monotonic() > until:
                    return list(self._news)
                self._some.wait(LOOK_S)

    def close(self) -> None:
        with self._lock:
            self._launcher.close()
            for server in self._servers.values():
                server.end()
            until = time.monotonic() + END_S
            for server in self._servers.values():
                server.wait(max(0.0, until - time.monotonic()))  # one that still runs would go on writing there
            if self._place is not None:
                shutil.rmtree(self._place, ignore_errors=True)

    def _look(self) -> None:
        """For ranks and servers that have ended."""
        with self._lock:
            for server in self._servers.values():
                server.look()
            codes = {rank: process.poll() for rank, process in self._ranks.items()}
        now = time.monotonic()
        for rank, code in codes.items():
            if code is not None and now - self._ended.setdefault(rank, now) > LAST_WORDS_S:
                self._ended[rank] = float("inf")  # told once
                self._tell(rank, "exit", str(code))

    def _tell(self, who: int | str, kind: str, text: str) -> None:
        with self._some:
            self._number += 1
            self._news.append((self._number, who, kind, text))
            self._some.notify_all()


def as_given(order: Order) -> dict[str, Any]:
    """An order as it travels: plain values, so that versions that differ can be told before they break."""
    return asdict(order)
