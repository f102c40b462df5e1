"""How many threads a decoding step on a CPU uses: all, or one.

The threads of a product meet at its end. Beside other work one of them is often not running just then, and the others
wait for it, product after product: one thread alone is then several times as fast. Nobody can know beforehand, and it
changes while a run goes on, so the steps themselves tell: now and then one is made the other way.
"""

from __future__ import annotations

import os

# Every so many steps the other way is tried; less often where it was much slower the last time.
TRY_EVERY, TRY_SELDOM = 16, 64
MUCH_SLOWER = 1.5
# The newest measurement's weight in what is remembered.
NEWEST = 0.5


class Threads:
    """Remembers, for batches of about the same size, how long a step took with all threads and with one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._took: dict[tuple[int, int], float] = {}  # (threads, size class): seconds
        self._steps: dict[int, int] = {}  # by size class

    def choose(self, rows: int) -> int:
        size = rows.bit_length()
        one, all_ = self._took.get((1, size)), self._took.get((self.most, size))
        if all_ is None:
            return self.most
        if one is None:
            return 1
        better, other = (1, self.most) if one < all_ else (self.most, 1)
        every = TRY_SELDOM if max(one, all_) > MUCH_SLOWER * min(one, all_) else TRY_EVERY
        self._steps[size] = self._steps.get(size, 0) + 1
        return other if self._steps[size] % every == 0 else better

    def took(self, threads: int, rows: int, seconds: float) -> None:
        key = threads, rows.bit_length()
        self._took[key] = seconds if key not in self._took else (1 - NEWEST) * self._took[key] + NEWEST * seconds


def threads_to_choose_from(lockstep: bool) -> Threads | None:
    """None where the number is not ours to choose: the user has set it, or the run's bits depend on it."""
    import torch

    most = torch.get_num_threads()
    return None if lockstep or most == 1 or os.environ.get("OMP_NUM_THREADS") else Threads(most)
