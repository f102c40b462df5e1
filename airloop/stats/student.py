"""Student's t, without a library that takes longer to load than the rest of the command."""

from __future__ import annotations

import functools
import math


@functools.cache
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
