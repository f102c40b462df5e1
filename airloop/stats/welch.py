"""Whether the mean of one sample is another's: Welch's t, from what can be added up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Of independent values."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments:
        known = list(values)
        return cls(len(known), math.fsum(known), math.fsum(v * v for v in known))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.n + other.n, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        return self.total / self.n

    @property
    def error(self) -> float:
        """The squared standard error of the mean."""
        return max(0.0, self.squares - self.total**2 / self.n) / (self.n - 1) / self.n


def welch(was: Moments, now: Moments) -> tuple[float, int]:
    """Welch's t of the second's mean less the first's, and its degrees of freedom, rounded down."""
    a, b, difference = was.error, now.error, now.mean - was.mean
    if a + b == 0:
        return (math.copysign(math.inf, difference) if difference else 0.0), was.n + now.n - 2
    return difference / math.sqrt(a + b), max(1, int((a + b) ** 2 / (a**2 / (was.n - 1) + b**2 / (now.n - 1))))
