"""Rewards become advantages: a pure function from groups to the rows of a batch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from air.learn.batches import Row
from air.types import Group, Trajectory

# Added to a group's standard deviation: as in TRL, so that nearly equal rewards are not blown up.
EPSILON = 1e-4


@dataclass(frozen=True)
class Batch:
    rows: tuple[Row, ...]
    advantages: dict[str, float]  # by trajectory, also of those that have no row because theirs is zero
    trajectories: int


def group_advantages(rewards: Sequence[float], scale: bool) -> list[float]:
    """Each reward less the group's mean; divided by the group's standard deviation if `scale`."""
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) + EPSILON if scale else 1.0
    return [(r - mean) / spread if abs(r - mean) > 1e-9 else 0.0 for r in rewards]


def assign_advantages(
    groups: Sequence[Group], *, loss: str, scale_rewards: bool, token_constant: int, keep_zero: bool = False
) -> Batch:
    """One advantage per trajectory, for each of its sampled tokens.

    GRPO averages over a trajectory's tokens and then over trajectories; Dr. GRPO divides every token by the
    same `token_constant`, so that length earns nothing. Trajectories without advantage have no gradient and
    are left out, but count in the mean; with a KL term they have one (`keep_zero`).
    """
    total = sum(len(g.trajectories) for g in groups)
    rows: list[Row] = []
    advantages: dict[str, float] = {}
    for group in groups:
        for trajectory, advantage in zip(
            group.trajectories, group_advantages(group.rewards, scale_rewards), strict=True
        ):
            advantages[trajectory.id] = advantage
            if advantage or keep_zero:
                tokens = token_constant if loss == "dr_grpo" else max(1, trajectory.sampled_tokens)
                rows += trajectory_rows(trajectory, advantage, 1 / (total * tokens))
    return Batch(tuple(rows), advantages, total)


def trajectory_rows(trajectory: Trajectory, advantage: float, weight: float) -> list[Row]:
    return [
        Row(f"{trajectory.id}#{i}", b.tokens, b.train, b.logprobs, advantage, weight)
        for i, b in enumerate(trajectory.branches)
    ]


def demonstration_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """Supervised rows: every demonstrated token counts the same."""
    tokens = max(1, sum(t.sampled_tokens for t in trajectories))
    rows = [row for t in trajectories for row in trajectory_rows(t, 1.0, 1 / tokens)]
    return Batch(tuple(rows), {t.id: 1.0 for t in trajectories}, len(trajectories))
