"""Plays many matches of ten rounds side by side, round by round, with one batch of calls a round.

A move is scored with its expected payoff over the opponent's next move, whose chances are known: the mean is
the same as that of sampled payoffs and the opponent's luck in the last draw is not in it. The opponent's moves
are drawn by stratified chances (over all matches, each share of [0, 1) once), which leaves every single match
as random as before and takes out most of the luck between matches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from agent_code import agent_function, results
from verdict import Invalid

MATCHES = 1000
ROUNDS = 10

History = list[tuple[int, int]]  # (row's move, opponent's move), oldest first


def play(chance_of_zero: Callable[[History], float], payoffs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean payoff a round of strategy.row_strategy against an opponent that plays 0 by this chance."""
    strategy = agent_function("strategy", "row_strategy")
    rng = random.Random()  # seeded by the system
    histories: list[History] = [[] for _ in range(MATCHES)]
    total = 0.0
    for _ in range(ROUNDS):
        moves = results(strategy, [([*h],) for h in histories], "row_strategy")
        strata = list(range(MATCHES))
        rng.shuffle(strata)
        for history, move, stratum in zip(histories, map(checked, moves), strata, strict=True):
            zero = chance_of_zero(history)
            total += zero * payoffs[move][0] + (1 - zero) * payoffs[move][1]
            history.append((move, 0 if (stratum + rng.random()) / MATCHES < zero else 1))
    return {"Score": round(total / (MATCHES * ROUNDS), 4)}


def checked(move: Any) -> int:
    if type(move) is not int or move not in (0, 1):
        raise Invalid(f"row_strategy returned {move!r:.60}; it must return the int 0 or 1.")
    return move
