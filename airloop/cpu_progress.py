"""What a process has computed: on a slow or busy machine the wall clock alone cannot tell slow work from none.

A process that waits for something that never comes uses no CPU; one that computes does, however long it takes here.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# Of a core, over the time that is looked at. Beside eight others on two cores a process still gets a fifth of one; one
# that only waits, with its watchers and heartbeats, uses a hundredth.
COMPUTES = 0.05
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class CpuProgress:
    """Of this process, since a moment."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._clock, self._cpu = time.monotonic(), time.process_time()

    @property
    def computing(self) -> bool:
        """Whether it has computed most of the time. Never said of one with a GPU: it turns in circles while it waits
        for the device, so its CPU time is no evidence."""
        seconds = time.monotonic() - self._clock
        return seconds > 0 and time.process_time() - self._cpu > COMPUTES * seconds and not has_gpu()


def has_gpu() -> bool:
    """Whether this process has begun to use one."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


class CpuTimeout:
    """A deadline for a child's work, in time that it was given: it is over when the child has used `seconds` of CPU, or
    has used next to none for as long by the wall clock. Where a child's CPU time cannot be read, the wall clock
    decides."""

    def __init__(self, seconds: float, pid: int) -> None:
        self._seconds, self._pid = seconds, pid
        self._began = self._looked = time.monotonic()
        self._first = self._last = cpu_seconds(pid)

    def left(self) -> float:
        """Seconds until it is worth to look again; 0 when it is over."""
        now, used = time.monotonic(), cpu_seconds(self._pid)
        if now - self._looked < self._seconds:
            return self._seconds - (now - self._looked)
        if used is None or self._first is None or self._last is None:
            return 0.0
        if used - self._first >= self._seconds or used - self._last <= COMPUTES * (now - self._looked):
            return 0.0
        self._looked, self._last = now, used
        return self._seconds

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began


def cpu_seconds(pid: int) -> float | None:
    """What a process has used so far; None where the system does not tell, or the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, ValueError, IndexError):
        return None
