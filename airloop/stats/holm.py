"""Many comparisons: of twenty that find nothing, one would be called a finding. Holm's step-down correction.

The smallest of m p-values is held against α/m, the next against α/(m−1), and so on to the first that fails: that one
and all after it are no findings. However the comparisons depend on each other (here all share a base), at least one
false finding comes in at most α of the cases. So that what is shown agrees with what is said, each comparison has the
interval of the level at which it was judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airloop.stats.intervals import LEVEL

LEAST = 1e-9  # p-values below this are not told apart
MOST = 0.999
CLOSE = 1.001  # bounds that are so near to each other are a p-value: three digits are shown


@dataclass(frozen=True)
class Judged:
    p: float  # of the comparison alone
    adjusted: float  # the smallest α at which it would be a finding among all
    level: float  # at which it was judged, and of the interval that is shown
    found: bool


def strictest(comparisons: int, level: float = LEVEL) -> float:
    """The level to which the first of so many is held."""
    return 1 - (1 - level) / max(1, comparisons)


def p_value(found: Callable[[float], bool]) -> float:
    """The smallest α at whose level 1 − α something is found, by halving between bounds."""
    if found(1 - LEAST):
        return LEAST
    if not found(1 - MOST):
        return 1.0
    low, high = LEAST, MOST
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if found(1 - middle) else (middle, high)
    return high


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[Judged]:
    """In the order in which they were given."""
    alpha, count = 1 - level, len(p_values)
    judged: dict[int, Judged] = {}
    adjusted, held, going = 0.0, strictest(count, level), True
    for rank, place in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        p, among = p_values[place], count - rank
        if going:  # from the first that fails on, all are judged as it was
            held = 1 - alpha / among
            going = p <= alpha / among
        adjusted = min(1.0, max(adjusted, p * among))
        judged[place] = Judged(p, adjusted, held, going)
    return [judged[place] for place in range(count)]
