"""The expected result against the opponent: every force in every order counts with its probability, so the only
chance left in a score is in what the agent's own code draws."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
from agent_code import agent_function, results
from target import FIELDS, FORCES, SOLDIERS
from verdict import Invalid, report

GAMES = 2000


def opponents() -> tuple[np.ndarray, np.ndarray]:
    """Every different allocation of the opponent [allocations, fields] and its probability."""
    orders = [(weight, sorted(set(permutations(force)))) for weight, force in FORCES]
    allocations = np.array([order for _, found in orders for order in found], np.int16)
    return allocations, np.concatenate([np.full(len(found), weight / len(found)) for weight, found in orders])


def expected_results(allocations: np.ndarray) -> np.ndarray:
    """1 for a game won, 0 for a tie, -1 for a game lost, expected over the opponent; [allocations]."""
    theirs, chances = opponents()
    lead = np.zeros((len(allocations), len(theirs)), np.int8)
    for field in range(FIELDS):
        lead += np.sign(allocations[:, field, None] - theirs[:, field]).astype(np.int8)
    return np.sign(lead) @ chances


def checked(allocation: Any) -> tuple[int, ...]:
    fair = isinstance(allocation, list | tuple) and len(allocation) == FIELDS
    if not fair or any(type(n) is not int or n < 0 for n in allocation) or sum(allocation) != SOLDIERS:
        raise Invalid(
            f"row_strategy returned {allocation!r:.80}; it must return a list of {FIELDS} ints, none negative, "
            f"with the sum {SOLDIERS}."
        )
    return tuple(allocation)


def evaluate() -> dict[str, float]:
    strategy = agent_function("strategy", "row_strategy")
    chosen = [checked(a) for a in results(strategy, [([],)] * GAMES, "row_strategy")]
    different, counts = np.unique(np.array(chosen, np.int16), axis=0, return_counts=True)
    return {"Score": round(float(expected_results(different) @ counts) / GAMES, 4)}


if __name__ == "__main__":
    report(evaluate)
