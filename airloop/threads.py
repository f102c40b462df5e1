"""How torch's threads wait, and how many of them a pass on a CPU uses: all, or one.

The threads of a product meet at its end. Beside other work one of them is often not running just then, and the others
wait for it, product after product: one thread alone is then several times as fast. Nobody can know beforehand, and it
changes while a run goes on, so the passes themselves tell: now and then one is made the other way.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator

# Every so many passes the other way is tried; less often where it was much slower the last time.
TRY_EVERY, TRY_SELDOM = 16, 64
MUCH_SLOWER = 1.5
# Passes of each way before one is chosen: the quicker counts, since the first takes memory and fills caches. One pass
# of the second way is enough where it takes so many times as long.
FIRST, HOPELESS = 2, 4.0
# A machine with so many processes to run for each core is busy: there, one thread is tried first.
BUSY = 1.5
# The newest measurement's weight in what is remembered.
NEWEST = 0.5


def set_passive_waiting() -> None:
    """Idle OpenMP threads sleep instead of spinning; to be called before torch is imported. Sampling shares its cores
    with the environments' own processes, and a spinning thread that waits for one that is not scheduled waits long."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For work of milliseconds: on a busy machine, threads wait for each other longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Threads:
    """Remembers, for passes of about the same size, how long one took with all threads and with one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._took: dict[tuple[int, int], float] = {}  # (threads, size class): seconds
        self._passes: dict[tuple[int, int], int] = {}
        self._chosen: dict[int, int] = {}  # by size class, how often

    def choose(self, rows: int) -> int:
        size = rows.bit_length()
        if (first := self._not_known_yet(size)) is not None:
            return first
        one, all_ = self._took[1, size], self._took[self.most, size]
        better, other = (1, self.most) if one < all_ else (self.most, 1)
        every = TRY_SELDOM if max(one, all_) > MUCH_SLOWER * min(one, all_) else TRY_EVERY
        self._chosen[size] = self._chosen.get(size, 0) + 1
        return other if self._chosen[size] % every == 0 else better

    def _not_known_yet(self, size: int) -> int | None:
        """The way that has to be tried first; None where both are known."""
        for threads, other in ((1, self.most), (self.most, 1)) if is_busy() else ((self.most, 1), (1, self.most)):
            passes = self._passes.get((threads, size), 0)
            known = self._took.get((other, size), math.inf)
            if passes < FIRST and not (passes and self._took[threads, size] > HOPELESS * known):
                return threads
        return None

    def took(self, threads: int, rows: int, seconds: float) -> None:
        key = threads, rows.bit_length()
        before, passes = self._took.get(key, seconds), self._passes.get(key, 0)
        self._passes[key] = passes + 1
        self._took[key] = min(before, seconds) if passes < FIRST else (1 - NEWEST) * before + NEWEST * seconds

    @contextlib.contextmanager
    def chosen(self, rows: int, parts: int = 1) -> Iterator[None]:
        """A pass over so many rows, made the way that is quicker. `parts`: what its seconds are divided by, so that
        passes of one size class compare."""
        threads = self.choose(rows)
        began = time.perf_counter()
        with one_thread() if threads == 1 else contextlib.nullcontext():
            yield
        self.took(threads, rows, (time.perf_counter() - began) / parts)


def is_busy() -> bool:
    """Whether others want the cores too, as far as the system tells: the mean of the last minute."""
    try:
        return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
    except (OSError, AttributeError):  # Windows has none
        return False


def threads_to_choose_from(lockstep: bool) -> Threads | None:
    """None where the number is not ours to choose: the user has set it, or the run's bits depend on it."""
    import torch

    most = torch.get_num_threads()
    return None if lockstep or most == 1 or os.environ.get("OMP_NUM_THREADS") else Threads(most)
