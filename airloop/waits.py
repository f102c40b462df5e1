"""Every wait has a name, a deadline and an owner; one that lasts too long is told of, with its owner's last lines.

Whoever waits says so: `with waiting("the fit of wine-3", "fitting worker 812", 60) as wait: ...`, and
`wait.progress("34 of 98 MB")` as the work goes on: a wait that makes progress is no stall, and the display shows how
far it is. A thread looks at what is open every few seconds, so that it also sees a wait that blocks the event loop. It
only tells; what ends a wait is the deadline that its owner enforces.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from airloop.cpu_progress import CpuProgress

# Seconds between two looks: a stall is minutes long, and a look costs microseconds.
EVERY_S = 5.0
# Nothing began and nothing ended for so long: longer than any forward pass, update or checkpoint that we have measured
# (the slowest, a first update with kernels to compile, took 90 s), shorter than a person's patience.
QUIET_S = 300.0
# A process that computes all the while gets so many times as long: on a slow machine it is slow, not stuck. One that
# turns in circles is told of then.
COMPUTING = 6
# The owner of what ranks wait for from one another.
RANKS = "the other ranks"
# Lines of an owner's log that are shown.
LAST_LINES = 8


@dataclass(eq=False)
class Wait:
    what: str
    owner: str  # whose work is waited for
    deadline_s: float
    log: Callable[[], str] | None = None  # what the owner has written, asked for when the wait is too long
    here: bool = False  # the work is this process's own, so that its CPU time tells slow from stuck
    began: float = field(default_factory=time.monotonic)
    told_s: float = 0.0  # how long it had been still when it was told of last
    moved: float = 0.0  # when it began, or last made progress
    so_far: str = ""  # how far it is
    cpu: CpuProgress = field(default_factory=CpuProgress)  # since it moved

    def __post_init__(self) -> None:
        self.moved = self.began

    def progress(self, so_far: str = "") -> None:
        self.moved, self.told_s, self.so_far = time.monotonic(), 0.0, so_far
        self.cpu.restart()

    def still(self, now: float) -> float:
        """Seconds without progress."""
        return now - self.moved


@dataclass(frozen=True)
class Stall:
    what: str
    owner: str
    waited_s: float
    deadline_s: float
    since: str  # the time of day
    lines: tuple[str, ...]  # the last of the owner's log
    others: str  # who else waits, and how many

    @property
    def overdue(self) -> bool:
        return self.waited_s > self.deadline_s

    def __str__(self) -> str:
        against = "past its deadline of" if self.overdue else "nothing else has moved; its deadline is"
        text = f"waiting for {self.what} by {self.owner} since {self.since}, {self.waited_s:.0f} s "
        text += f"({against} {self.deadline_s:.0f} s)"
        if self.others:
            text += f"; also waiting: {self.others}"
        return text + "".join(f"\n    {line}" for line in self.lines)


class Waits:
    """What is being waited for now, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Wait, None] = {}  # in the order they began
        self._moved = time.monotonic()  # when one last began or ended

    @contextlib.contextmanager
    def waiting(
        self, what: str, owner: str, deadline_s: float, log: Callable[[], str] | None = None, here: bool = False
    ) -> Iterator[Wait]:
        wait = Wait(what, owner, deadline_s, log, here)
        with self._lock:
            self._open[wait] = None
            self._moved = wait.began
        try:
            yield wait
        finally:
            with self._lock:
                self._open.pop(wait, None)
                self._moved = time.monotonic()

    def open(self) -> list[Wait]:
        with self._lock:
            return list(self._open)

    @property
    def moved(self) -> float:
        """When anything last began, ended or made progress."""
        return max([self._moved, *(wait.moved for wait in self.open())])

    def touch(self) -> None:
        """Something has come that nobody waits for by name."""
        with self._lock:
            self._moved = time.monotonic()

    def progress(self, owner: str, so_far: str = "") -> None:
        """Of whatever waits for `owner`: said by the owner, who does not know who waits."""
        for wait in self.open():
            if wait.owner == owner:
                wait.progress(so_far)


WAITS = Waits()
waiting = WAITS.waiting


class Watchdog:
    """Tells of every wait past its deadline and, when nothing at all has moved for `quiet_s`, of the wait that began
    last: what began before it waits for it, as a rule. Each is told again when it has lasted twice as long. Time counts
    from the last progress."""

    def __init__(
        self,
        tell: Callable[[Stall], None],
        waits: Waits = WAITS,
        every_s: float = EVERY_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._tell = tell
        self._waits = waits
        self._every_s = every_s
        self._quiet_s = quiet_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="air-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=self._every_s + 1)

    def look(self) -> None:
        now, waits = time.monotonic(), self._waits.open()
        due = {wait: wait.deadline_s * (_longer(wait) if wait.here else 1) for wait in waits}
        if waits and now - self._waits.moved >= self._quiet_s * _longer(waits[-1]):
            due[waits[-1]] = min(self._quiet_s, waits[-1].deadline_s)
        for wait, limit in due.items():
            if wait.still(now) > max(limit, 2 * wait.told_s):
                wait.told_s = wait.still(now)
                self._tell(_stall(wait, waits, now))

    def _watch(self) -> None:
        while not self._end.wait(self._every_s):
            self.look()


def _longer(wait: Wait) -> int:
    return COMPUTING if wait.cpu.computing else 1


def _stall(wait: Wait, waits: list[Wait], now: float) -> Stall:
    age = wait.still(now)
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - age))
    others = Counter(other.owner for other in waits if other is not wait)
    named = ", ".join(f"{owner} ({count})" if count > 1 else owner for owner, count in others.most_common(4))
    return Stall(wait.what, wait.owner, age, wait.deadline_s, since, last_lines(wait.log), named)


def last_lines(log: Callable[[], str] | None) -> tuple[str, ...]:
    if log is None:
        return ()
    try:
        return tuple(log().rstrip().splitlines()[-LAST_LINES:])
    except Exception as error:  # its owner may be gone; the stall is told of all the same
        return (f"(its log could not be read: {error})",)
