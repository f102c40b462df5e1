"""Ranks without the seconds in which each launcher's own server imports torch: for all launchers of a process, and for
what support/warm_process.py starts, there is one."""

from __future__ import annotations

import threading
from typing import Any

from support import warm_process

from airloop.forkserver import Forked, SharedForked

_lock = threading.RLock()


class WarmServer:
    """In place of a ForkServer of a launcher's own; it outlives them, and any thread may use it."""

    def __init__(self, modules: object) -> None:
        pass

    def start(self, *given: Any) -> WarmForked:
        with _lock:
            return WarmForked(warm_process.warm_server().start(*given))

    def close(self) -> None:
        pass


class WarmForked(SharedForked):
    def __init__(self, process: Forked) -> None:
        super().__init__(process, _lock)

    def send_signal(self, number: int) -> None:
        with _lock:
            self._process.send_signal(number)
