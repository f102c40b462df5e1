"""Which rank does not come, while another waits for it: from what ranks say of themselves (airloop/pulse.py).

Slow is not broken. How long a rank may stand still follows from how long ranks did in the same phase before, and is
generous where none has been through it; one that computes, reads or writes has several times as long, one that waits
for another's work as long as that may take, and one that somebody debugs is never told of. Time is counted here only
while this process runs: one that was stopped with its machine or its terminal has missed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from airloop.cpu_progress import COMPUTES, cpu_seconds
from airloop.pulse import Pulse
from airloop.waits import COMPUTING

# Times as long as any rank was still in a phase, in which it is known what is usual.
TIMES = 10
# Of what a phase may take that nobody has been through: the least of one that somebody was.
KNOWN_SHARE = 1 / 3
# Between two looks at most: what is more, this process was stopped.
TICK_S = 1.0
# Without a word for so long, a rank's last word is not what it does now.
SILENT_S = 15.0
# Read and written while still: more than pulses themselves, and the log, would.
IO_BYTES = 1 << 20
# After Ctrl-C: for a rank that a signal has stopped; for one that does nothing while others wait for it; and for one
# that nobody waits for, or that works on something that never took as long.
STOPPED_S = 3.0
STOP_STILL_S = 10.0
STOP_WORKING_S = 30.0


@dataclass(frozen=True)
class ProcessLook:
    """Of a process on this machine, as the kernel has it."""

    cpu_s: float | None
    state: str  # R, S, D; T: stopped by a signal
    traced: bool


Look = Callable[[int], ProcessLook | None]  # by rank; None where it is on another machine


@dataclass
class Seen:
    """A rank, as far as it was heard of. Times are ours."""

    phase: str = "starting"
    pulse: Pulse | None = None
    heard: float = 0.0
    still_since: float = 0.0
    first: Pulse | None = None  # since it is still
    worked: bool = False  # since then, a thread was seen in a disk's sleep
    waits_since: float = 0.0


@dataclass(frozen=True)
class Still:
    """A rank that does not come. `waiting`: one that waits for it, and what for."""

    rank: int
    seen: Seen
    seconds: float
    limit_s: float
    stopped: bool  # by a signal
    waiting: int
    waited_s: float


@dataclass
class Stillness:
    timeout_s: float  # for a rank that does nothing, in a phase that nobody has been through
    look: Look
    ranks: dict[int, Seen] = field(default_factory=dict)
    _longest: dict[str, float] = field(default_factory=dict)  # by phase: how long any rank was still in it
    _known: set[str] = field(default_factory=set)  # phases that a rank has left
    _now: float = 0.0  # seconds that this process was running
    _last: float | None = None

    def tick(self, clock: float) -> None:
        if self._last is not None:
            self._now += min(clock - self._last, TICK_S)
        self._last = clock

    def start(self, rank: int) -> None:
        self.ranks[rank] = Seen(heard=self._now, still_since=self._now)

    def phase(self, rank: int, text: str) -> None:
        seen = self.ranks[rank]
        self._note(seen)
        self._known.add(_kind(seen.phase))
        seen.phase = text
        self._moved(seen)

    def hear(self, rank: int, pulse: Pulse) -> None:
        seen = self.ranks[rank]
        before, moved = seen.pulse, seen.pulse is None or seen.pulse.moved != pulse.moved
        if moved:
            self._note(seen)
        if before is None or before.waits_since != pulse.waits_since:
            seen.waits_since = self._now
        seen.pulse, seen.heard = pulse, self._now
        if moved:
            self._moved(seen)
        seen.worked, seen.first = seen.worked or pulse.disk, seen.first or pulse

    def find(self, running: Iterable[int]) -> Still | None:
        """A rank that others have waited for as long as it may stand still."""
        here = list(running)
        waiters = {rank: self._now - self.ranks[rank].waits_since for rank in here if self._waits(rank)}
        if not waiters:
            return None
        longest = max(waiters, key=lambda rank: waiters[rank])
        late = [rank for rank in here if rank not in waiters]
        for rank in late:
            limit, process = self.limit(rank), self.look(rank)
            seen = self.ranks[rank]
            still = self._now - seen.still_since
            if min(still, waiters[longest]) <= limit or _debugged(seen, process):
                continue
            stopped = process is not None and process.state == "T"
            return Still(rank, seen, still, limit, stopped, longest, waiters[longest])
        return None

    def all_wait(self, running: Iterable[int]) -> float | None:
        """How long all ranks have waited for one another, where that is too long."""
        here = list(running)
        if not here or not all(self._waits(rank) for rank in here):
            return None
        waited = min(self._now - self.ranks[rank].waits_since for rank in here)
        working = any(self._works(rank, self.look(rank)) for rank in here)
        debugged = any(_debugged(self.ranks[rank], self.look(rank)) for rank in here)
        return waited if waited > self.timeout_s * (COMPUTING if working else 1) and not debugged else None

    def waited_for(self, running: Iterable[int]) -> bool:
        return any(self._waits(rank) for rank in running)

    def hopeless(self, running: Iterable[int], since: float, waited_for: bool) -> list[int]:
        """After a request to stop, at `since` of our time: the ranks that have not taken notice of it, where all others
        wait for them; empty as long as any may still come to its end. `waited_for`: they were, when it was made."""
        found = []
        for rank in running:
            if self._waits(rank):
                continue
            seen, process = self.ranks[rank], self.look(rank)
            limit = self._stop_limit(rank, process, waited_for)
            stopped = process is not None and process.state == "T"  # what it said before may have come since
            noticed = seen.still_since > since and not stopped
            still = self._now - max(seen.still_since, since)
            if limit is None or noticed or still <= limit or _debugged(seen, process):
                return []
            found.append(rank)
        return found

    def _stop_limit(self, rank: int, process: ProcessLook | None, waited_for: bool) -> float | None:
        if process is not None and process.state == "T":
            return STOPPED_S
        if not self._works(rank, process, gpu=True):
            return STOP_STILL_S if waited_for else STOP_WORKING_S
        known = self._usual(self.ranks[rank])
        return None if known is None else max(STOP_WORKING_S, TIMES * known)

    @property
    def now(self) -> float:
        return self._now

    def limit(self, rank: int) -> float:
        """Seconds that a rank may stand still where it is."""
        seen, process = self.ranks[rank], self.look(rank)
        known = self._usual(seen)
        limit = self.timeout_s if known is None else max(self.timeout_s * KNOWN_SHARE, TIMES * known)
        if process is not None and process.state == "T":
            return limit
        if self._works(rank, process):
            limit *= COMPUTING
        if self._fresh(seen) and seen.pulse is not None and seen.pulse.allowed_s:
            limit = max(limit, seen.pulse.allowed_s + self.timeout_s * KNOWN_SHARE)
        return limit

    def _works(self, rank: int, process: ProcessLook | None, gpu: bool = False) -> bool:
        """Whether it has computed, read or written since it is still. `gpu`: what turns in circles there counts, too.
        Of one on another machine that says nothing it is not known: it may."""
        seen = self.ranks[rank]
        seconds, first, last = self._now - seen.still_since, seen.first, seen.pulse
        if process is not None and process.state == "T":
            return False
        if not self._fresh(seen):
            if process is None or process.cpu_s is None:
                return True
            used = process.cpu_s - (first.cpu_s if first else 0.0)
            return process.state == "D" or used > COMPUTES * seconds
        if first is None or last is None:
            return False
        computed = last.cpu_s - first.cpu_s > COMPUTES * seconds and (gpu or not last.gpu)
        return computed or seen.worked or last.io_bytes - first.io_bytes > IO_BYTES

    def _waits(self, rank: int) -> bool:
        seen = self.ranks[rank]
        return seen.pulse is not None and bool(seen.pulse.waits) and self._fresh(seen)

    def _fresh(self, seen: Seen) -> bool:
        return seen.pulse is not None and self._now - seen.heard <= SILENT_S

    def _note(self, seen: Seen) -> None:
        """How long it was still until now, in its phase: by itself, not because others were late."""
        if seen.pulse is None or not seen.pulse.waits:
            kind = _kind(seen.phase)
            self._longest[kind] = max(self._longest.get(kind, 0.0), self._now - seen.still_since)

    def _usual(self, seen: Seen) -> float | None:
        """How long ranks are still in its phase, where any has been through it."""
        kind = _kind(seen.phase)
        return self._longest.get(kind, 0.0) if kind in self._known else None

    def _moved(self, seen: Seen) -> None:
        seen.still_since, seen.first, seen.worked = self._now, seen.pulse, False


def process_look(pid: int) -> ProcessLook | None:
    """Of a process of this machine."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    traced = re.search(r"^TracerPid:\s*([1-9]\d*)", status, re.MULTILINE) is not None
    return ProcessLook(cpu_seconds(pid), stat[0] if stat else "", traced)


def _debugged(seen: Seen, process: ProcessLook | None) -> bool:
    return bool(process and process.traced) or bool(seen.pulse and seen.pulse.debugged)


def _kind(phase: str) -> str:
    """The same for every step."""
    return re.sub(r"\d+", "#", phase)
