"""95 % intervals by the bootstrap: no assumption about the distribution, seeded, so that the same data
give the same interval; and Student's t, for a handful of values that resampling could not stretch."""

from __future__ import annotations

import math
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


def student_quantile(freedom: int, share: float = 0.975) -> float:
    """Student's t below which `share` (at least a half) of it lies, to the last digits of a float: found by
    halving between bounds, since the distribution itself is a finite sum."""
    low, high = 0.0, 1.0
    while student_share(high, freedom) < share:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_share(middle, freedom) < share else (low, middle)
    return high


def student_share(t: float, freedom: int) -> float:
    """The share of Student's t distribution below t, in closed form for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + within / 2
