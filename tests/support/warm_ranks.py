"""Ranks without the seconds in which each launcher's own server imports torch: for all launchers of a process, and for
what support/warm_process.py starts, there is one."""

from __future__ import annotations

import subprocess
import threading
import time
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

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None and until is not None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return super().wait()

    def send_signal(self, number: int) -> None:
        with _lock:
            self._process.send_signal(number)
