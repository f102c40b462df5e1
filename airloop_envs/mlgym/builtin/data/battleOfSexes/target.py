"""The opponent: it gives in to a stubborn player, but after two meetings at 0 it wants its turn."""

from __future__ import annotations

PAYOFFS = ((2, 0), (0, 1))  # the row player's

OPENING = 0.6
ITS_TURN = 0.15  # after two meetings at 0 in a row
GRATEFUL = 0.9  # after a meeting at 1
GIVING_IN = 0.85  # the row player just played 0
HOPEFUL = 0.5  # the row player just played 1, and they missed


def chance_of_zero(history: list[tuple[int, int]]) -> float:
    if not history:
        return OPENING
    if history[-2:] == [(0, 0), (0, 0)]:
        return ITS_TURN
    if history[-1] == (1, 1):
        return GRATEFUL
    return GIVING_IN if history[-1][0] == 0 else HOPEFUL
