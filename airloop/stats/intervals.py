"""A mean over tasks and a paired difference, each with its interval; and what may be said of a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airloop.stats.binomial import share_interval
from airloop.stats.student import student_quantile

LEVEL = 0.95
# Up to so many tasks the signs of the differences are tried in every way; beyond, Student's t errs by less than that
# would take: simulated in tests/stats/.
MOST_TRIED = 12
# Differences that are equal but for the rounding of their last digits are equal.
DIGITS = 12


@dataclass(frozen=True)
class Interval:
    """Ends are infinite where there is no interval: of one value, or of too few for the level."""

    mean: float
    low: float
    high: float
    n: int
    level: float = LEVEL

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.bounded else f"{self.mean:.3f}"

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def signed(self) -> str:
        """As a difference: with its sign, and none before zero."""
        mean, low, high = (round(v, 3) + 0.0 for v in (self.mean, self.low, self.high))
        return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]" if self.bounded else f"{mean:+.3f}"

    @property
    def word(self) -> str:
        """What may be said, if this is of a difference between tasks."""
        if self.n < (needed := fewest(self.level)):
            return f"too few tasks to tell ({self.n} of {needed})"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "no evidence of a difference"

    def as_json(self, counted: str = "tasks") -> dict[str, Any]:
        """null where an end is infinite."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return {"mean": self.mean, "low": low, "high": high, counted: self.n}


def fewest(level: float = LEVEL) -> int:
    """With fewer tasks no paired test can tell, even if all differ in the same direction."""
    return math.ceil(1 - math.log2(1 - level))


FEWEST = fewest()


def mean_interval(values: Sequence[float], level: float = LEVEL, share: bool = False) -> Interval:
    """Of independent values: Student's t, or exact where all are passed or failed. `share`: they lie between 0 and 1,
    so all that passed or all that failed say so too."""
    found = student_mean(values, level)
    if {*values} <= {0.0, 1.0} and (share or len({*values}) == 2):
        return Interval(found.mean, *share_interval(round(sum(values)), found.n, level), found.n, level)
    if share and found.bounded and min(values) >= 0 and max(values) <= 1:
        return Interval(found.mean, max(0.0, found.low), min(1.0, found.high), found.n, level)
    return found


def difference(after: Sequence[float], before: Sequence[float], level: float = LEVEL, share: bool = False) -> Interval:
    """Paired: the same tasks on both sides, so that their own difficulty cancels."""
    if len(after) != len(before):
        raise ValueError(f"{len(after)} tasks against {len(before)}: a paired difference needs the same tasks")
    return gain_interval([a - b for a, b in zip(after, before, strict=True)], level, share)


def gain_interval(gains: Sequence[float], level: float = LEVEL, share: bool = False) -> Interval:
    """Of paired differences: wide enough for Student's t and, as that trusts few or few-valued differences too much,
    for an exact test. `share`: of shares, so no difference is larger than 1."""
    gains = [round(gain, DIGITS) for gain in gains]
    found = student_mean(gains, level)
    sizes = {abs(gain) for gain in gains} - {0.0}
    if (share and len(sizes) < 2) or len({*gains}) > len(sizes) == 1:  # tasks are won, lost or tied
        exact = _by_signs(gains, max(sizes, default=1.0), level)
    elif found.n <= MOST_TRIED:
        exact = _by_all_signs(gains, level)
    else:
        return found
    low, high = min(found.low, exact[0]), max(found.high, exact[1])
    if share:
        low, high = max(low, -1.0), min(high, 1.0)
    return Interval(found.mean, low, high, found.n, level)


def student_mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean and interval by Student's t."""
    count = len(values)
    if not count:
        raise ValueError("no values to take a mean of")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1, level)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    half = student_quantile(count - 1, (1 + level) / 2) * spread / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count, level)


def _by_signs(gains: Sequence[float], size: float, level: float) -> tuple[float, float]:
    """Of tasks that were won, lost or tied: what McNemar's exact test leaves possible. Where all are tied, what so many
    ties leave possible."""
    won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    changed = won + lost
    if not changed:
        _, most = share_interval(0, len(gains), level)
        return -size * most, size * most
    low, high = share_interval(won, changed, level)
    return size * (2 * low - 1) * changed / len(gains), size * (2 * high - 1) * changed / len(gains)


def _by_all_signs(gains: Sequence[float], level: float) -> tuple[float, float]:
    """Of differences that would be as likely with the other sign if there were none: then the true one lies with the
    same probability between any two neighbours among the means of all 2ⁿ−1 subsets (Hartigan), and so between the
    k-th from below and the k-th from above in all but 2k of 2ⁿ cases."""
    import numpy as np

    sums, counts = np.zeros(1), np.zeros(1)
    for gain in gains:
        sums, counts = np.concatenate([sums, sums + gain]), np.concatenate([counts, counts + 1])
    rank = math.floor((1 - level) / 2 * len(sums))
    if not rank:
        return -math.inf, math.inf
    means = np.sort((sums[1:] / counts[1:]).round(DIGITS))
    return float(means[rank - 1]), float(means[-rank])
