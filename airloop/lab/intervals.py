"""95 % intervals by the bootstrap: no assumption about the distribution, seeded, so that the same data
give the same interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean and its percentile interval. One value has no interval: it is returned as it is."""
    data = np.asarray(values, dtype=float)
    if len(data) == 0:
        raise ValueError("no values to take a mean of")
    if len(data) == 1:
        return Interval(float(data[0]), float(data[0]), float(data[0]), 1)
    draws = np.random.default_rng(seed).integers(0, len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def bootstrap_difference(after: Sequence[float], before: Sequence[float], seed: int = 0) -> Interval:
    """Paired: the same rows on both sides, so the rows' own difficulty cancels."""
    if len(after) != len(before):
        raise ValueError(f"{len(after)} rows against {len(before)}: a paired difference needs the same rows")
    return bootstrap_mean([a - b for a, b in zip(after, before, strict=True)], seed)
