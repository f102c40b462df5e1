"""The longest common beginning: of token sequences that share keys and values, of texts that share tokens."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Its length."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:  # the usual case, compared in C
        return length
    equal = 0
    while length - equal > 1:  # equal up to here, and not up to there: halved, each half compared in C
        middle = (equal + length) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            length = middle
    return equal
