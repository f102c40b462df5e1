"""What a sampled token counts in the batch's loss: how a mean over trajectories or tokens is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCounts:
    trajectories: int
    tokens: int  # sampled, of all of them
    constant: int  # the context: the most tokens that a trajectory can have


@dataclass(frozen=True)
class TokenWeight:
    formula: str  # as docs/losses.md shows it
    of: Callable[[int, BatchCounts], float]  # given the tokens of the token's own trajectory


TRAJECTORY_MEAN = TokenWeight("1 / (N · |y_i|)", lambda own, batch: 1 / (batch.trajectories * own))
# Every token the same, in every batch: length earns nothing.
CONSTANT_LENGTH = TokenWeight("1 / (N · context)", lambda own, batch: 1 / (batch.trajectories * batch.constant))
TOKEN_MEAN = TokenWeight("1 / Σ |y| over the batch", lambda own, batch: 1 / batch.tokens)
# The trajectory's log-prob whole.
TOKEN_SUM = TokenWeight("1 / N", lambda own, batch: 1 / batch.trajectories)
