"""What a rank says of itself every few seconds, so that whoever started it can tell one that is slow from one that
stands still (launch/stillness.py): whether anything in it moves, what it waits for, what it computes, and where it is.
"""

from __future__ import annotations

import asyncio
import faulthandler
import linecache
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from airloop.cpu_progress import has_gpu
from airloop.waits import RANKS, WAITS

PULSE_S = 2.0
# Waits whose parts say for themselves what they wait for, with deadlines of their own.
UMBRELLAS = ("the sampler",)
DEBUGGERS = ("pydevd", "debugpy")
QUIET_PULSES = 3  # after which a rank says where it stands
LINES = 8  # of the main thread, the innermost last
OTHERS = 4  # tasks beside it


@dataclass(frozen=True)
class Pulse:
    """Times are by the rank's own clock: they are compared with each other only."""

    moved: float  # when anything last began, ended or made progress
    waits: str  # for the other ranks: what for; empty: it does not wait for them
    waits_since: float
    cpu_s: float  # of the process
    io_bytes: int  # that it has read and written
    disk: bool  # a thread is in the kernel, for a disk or a network's files
    gpu: bool  # its processor time is no evidence: it turns in circles while it waits for the device
    allowed_s: float  # the longest deadline of what others do for it just now
    debugged: bool
    lines: tuple[str, ...]  # where it stands; empty while it moves


class PulseThread:
    """`send` gets a pulse as plain values."""

    def __init__(self, send: Callable[[dict[str, Any]], None], timeout_s: float) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None  # of the main thread, once it runs
        self._send, self._pause_s = send, min(PULSE_S, timeout_s / 10)
        self._moved, self._quiet = 0.0, 0
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="air-pulses", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                self._send(asdict(self.take()))
            except Exception:  # the launcher is gone; or what was looked at changed meanwhile
                continue

    def take(self) -> Pulse:
        waits, moved = WAITS.open(), WAITS.moved
        self._quiet = self._quiet + 1 if moved == self._moved else 0
        self._moved = moved
        for_ranks = [wait for wait in waits if wait.owner == RANKS]
        others = [w.deadline_s for w in waits if not w.here and w.owner != RANKS and w.owner not in UMBRELLAS]
        return Pulse(
            moved=moved,
            waits=for_ranks[-1].what if for_ranks else "",
            waits_since=for_ranks[-1].began if for_ranks else 0.0,
            cpu_s=time.process_time(),
            io_bytes=_io_bytes(),
            disk=_in_disk_sleep(),
            gpu=has_gpu(),
            allowed_s=max(others, default=0.0),
            debugged=any(name in sys.modules for name in DEBUGGERS),
            lines=tuple(where(self.loop)) if self._quiet >= QUIET_PULSES else (),
        )


def frames_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"frames-{rank}"


def dump_on_signal(folder: str, rank: int) -> None:
    """For a rank whose threads do not run any more, or not ours: the signal makes it write where each of them is."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, frames_file(folder, rank).open("w", encoding="utf-8"))


def where(loop: asyncio.AbstractEventLoop | None) -> list[str]:
    """The lines of code at which the main thread stands and, where that only waits for events, its tasks."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    stack = list[str]()
    while frame is not None:
        stack.append(_line(frame))
        frame = frame.f_back
    found = stack[:LINES][::-1]
    if loop is None or not loop.is_running() or not found or "selectors.py" not in found[-1]:
        return found
    chains = [_awaited(task.get_coro()) for task in asyncio.all_tasks(loop)]
    longest = max(chains, key=len, default=[])
    innermost = Counter(chain[-1] for chain in chains if chain and chain is not longest)
    more = [f"{line} ({count} tasks)" if count > 1 else line for line, count in innermost.most_common(OTHERS)]
    return [*longest[-LINES:], *more] or found


def _awaited(work: Any) -> list[str]:
    """Down a task's awaits to what it waits for: lines, the innermost last."""
    found = []
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is None:
            break
        found.append(_line(frame))
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None) or getattr(work, "ag_await", None)
    return found


def _line(frame: FrameType) -> str:
    code = frame.f_code
    line = frame.f_lineno or code.co_firstlineno  # of a frame between two lines there is none
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_name}" + (f": {text}" if text else "")


def _io_bytes() -> int:
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _in_disk_sleep() -> bool:
    for task in Path("/proc/self/task").glob("*/stat"):
        try:
            if task.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "D":
                return True
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return False
