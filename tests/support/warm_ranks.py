"""Ranks without the seconds in which each launcher's own server imports torch: one for all launchers of a process."""

from __future__ import annotations

import functools
import threading
from typing import Any

from airloop.forkserver import Forked, ForkServer, SharedForked
from airloop.launch.local import PRELOADED

_lock = threading.RLock()


class WarmServer:
    """In place of a ForkServer of a launcher's own; it outlives them, and any thread may use it."""

    def __init__(self, modules: object) -> None:
        pass

    def start(self, *given: Any) -> WarmForked:
        with _lock:
            return WarmForked(_server().start(*given))

    def close(self) -> None:
        pass


class WarmForked(SharedForked):
    def __init__(self, process: Forked) -> None:
        super().__init__(process, _lock)

    def send_signal(self, number: int) -> None:
        with _lock:
            self._process.send_signal(number)


@functools.cache
def _server() -> ForkServer:
    return ForkServer(PRELOADED)
