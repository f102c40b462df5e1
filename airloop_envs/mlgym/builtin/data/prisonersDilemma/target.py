"""The opponent: it remembers the last two rounds, and is the kinder the kinder it was treated."""

from __future__ import annotations

PAYOFFS = ((3, 0), (5, 1))  # the row player's; 0 cooperates, 1 defects

OPENING = 0.5
AFTER_KINDNESS = (0.4, 0.57, 0.7)  # by how many of the row player's last two moves were 0


def chance_of_zero(history: list[tuple[int, int]]) -> float:
    if not history:
        return OPENING
    if len(history) == 1:  # the only move it knows counts for two
        return AFTER_KINDNESS[2 * (1 - history[0][0])]
    return AFTER_KINDNESS[2 - history[-1][0] - history[-2][0]]
