"""Successes among trials: exact, as the normal curve says of 24 in 24 that it is certain."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable


@functools.cache
def share_interval(successes: int, trials: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's: the shares that would not make so many successes, or so few, a rarity. Of wins among wins
    and losses, a half is among them unless McNemar's exact test (the sign test) finds a difference."""
    rare = (1 - level) / 2
    low = _where(lambda p: at_least(successes, trials, p) > rare) if successes else 0.0
    high = _where(lambda p: at_least(successes + 1, trials, p) > 1 - rare) if successes < trials else 1.0
    return low, high


def at_least(successes: int, trials: int, share: float) -> float:
    """The probability of so many successes or more."""
    if successes <= 0 or share >= 1:
        return 1.0
    if successes > trials or share <= 0:
        return 0.0
    if successes <= share * trials:  # the shorter tail is the exact one
        return 1 - at_least(trials - successes + 1, trials, 1 - share)
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    term = math.exp(ways + successes * math.log(share) + (trials - successes) * math.log1p(-share))
    total, odds = 0.0, share / (1 - share)
    for k in range(successes, trials + 1):
        total += term
        if term < total * 1e-17:
            break
        term *= (trials - k) / (k + 1) * odds
    return total


def _where(holds: Callable[[float], bool]) -> float:
    """The share from which on it holds."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
