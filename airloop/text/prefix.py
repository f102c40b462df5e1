"""The longest common beginning: of token sequences that share keys and values, of texts that share tokens."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Its length."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:  # the usual case, compared in C
        return length
    return next(i for i in range(length) if one[i] != other[i])
