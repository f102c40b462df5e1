"""Rewards become advantages: pure functions from groups to the rows of a batch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airloop.learn.batches import Row
from airloop.learn.custom_losses import check_advantages, load_advantage
from airloop.learn.losses import find_loss
from airloop.learn.losses.weights import BatchCounts
from airloop.types import Group, Trajectory

# Added to a standard deviation: as in TRL, so that nearly equal rewards are not blown up.
EPSILON = 1e-4


@dataclass(frozen=True)
class Batch:
    rows: tuple[Row, ...]
    # By trajectory, also of those that have no row because theirs is zero; credited by turn, the mean over tokens.
    advantages: dict[str, float]
    trajectories: int
    silent: tuple[Row, ...] = ()  # rows of trajectories that are not trained on: nothing sets them apart


@dataclass(frozen=True)
class CreditedRow(Row):
    """A row whose turns earned differently: `credits` are the advantages of its trained tokens, in their order."""

    credits: tuple[float, ...] = field(kw_only=True)


@dataclass(frozen=True)
class TurnWeights:
    """How an environment's per-turn components count: their weights, and which are a mean over turns."""

    weights: Mapping[str, float]
    modes: Mapping[str, str]


def token_advantages(row: Row) -> Sequence[float]:
    """Of each trained token of a row."""
    return row.credits if isinstance(row, CreditedRow) else [row.advantage] * sum(row.train)


def trajectory_of(row: Row) -> str:
    """The id of the trajectory that a row is a branch of."""
    return row.key.rpartition("#")[0]


def group_advantages(
    rewards: Sequence[float], scale: bool, spread: float | None = None, leave_one_out: bool = False
) -> list[float]:
    """Each reward less the group's mean or, to leave one out, less the mean of the others; divided, if `scale`, by
    `spread`, which is the group's standard deviation unless given. Who is alone has nobody to be better than: 0."""
    count = len(rewards)
    if count < 2:
        return [0.0] * count
    mean = statistics.fmean(rewards)
    divisor = 1.0
    if scale:
        divisor = pooled_spread([rewards]) if spread is None else spread
    factor = (count / (count - 1) if leave_one_out else 1.0) / divisor
    return [(r - mean) * factor if abs(r - mean) > 1e-9 else 0.0 for r in rewards]


def own_advantages(advantage: str, rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """As `group_advantages`, by a function of the user's own."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    return check_advantages(advantage, load_advantage(advantage), rewards, lengths)


def pooled_spread(columns: Sequence[Sequence[float]]) -> float:
    """The standard deviation within a column, its square averaged over the columns that have one: of a step that has
    lost all its groups there is none, and no reward to be divided by it."""
    found = [statistics.variance(column) for column in columns if len(column) > 1]
    return math.sqrt(statistics.fmean(found) if found else 0.0) + EPSILON


def assign_advantages(
    groups: Sequence[Group],
    *,
    loss: str,
    scale_rewards: bool,
    token_constant: int,
    keep_zero: bool = False,
    scale_by: str = "group",
    turn_weights: Mapping[str, TurnWeights] | None = None,
    filtered: Sequence[Group] = (),
    advantage: str | None = None,
) -> Batch:
    """One advantage per trajectory for each of its sampled tokens or, given `turn_weights` by environment, one per
    turn.

    Trajectories without advantage have no gradient and are left out, but count in every mean; with a KL term
    they have one (`keep_zero`). `groups` are all of a batch: means and spreads are taken over them. Groups that were
    `filtered` out for want of signal are only looked at. `advantage` is a function of the user's own, by its file.
    """
    everyone = [t for g in groups for t in g.trajectories]
    over_batch = (
        pooled_spread(return_columns(everyone, turn_weights)) if scale_rewards and scale_by == "batch" else None
    )
    weigh, leave_one_out = token_weights(loss, everyone, token_constant), find_loss(loss).leave_one_out
    rows: list[Row] = []
    silent = [row for g in filtered for t in g.trajectories for row in trajectory_rows(t, [0.0], 0.0)]
    advantages: dict[str, float] = {}
    for group in groups:
        columns = return_columns(group.trajectories, turn_weights)
        spread = over_batch or (pooled_spread(columns) if scale_rewards else None)
        if advantage is None:
            by_turn = [group_advantages(column, scale_rewards, spread, leave_one_out) for column in columns]
        else:
            lengths = [t.sampled_tokens for t in group.trajectories]
            by_turn = [own_advantages(advantage, column, lengths) for column in columns]
        for member, trajectory in enumerate(group.trajectories):
            own = [column[member] for column in by_turn]
            advantages[trajectory.id] = _mean_advantage(trajectory, own)
            if any(own) or keep_zero:
                rows += trajectory_rows(trajectory, own, weigh[trajectory.id])
            else:
                silent += trajectory_rows(trajectory, [0.0], 0.0)
    return Batch(tuple(rows), advantages, len(everyone), tuple(silent))


def token_weights(loss: str, trajectories: Sequence[Trajectory], token_constant: int) -> dict[str, float]:
    """What a sampled token of each trajectory counts in the batch's loss (learn/losses/weights.py)."""
    tokens = {t.id: max(1, t.sampled_tokens) for t in trajectories}
    batch = BatchCounts(len(trajectories), sum(tokens.values()), token_constant)
    return {key: find_loss(loss).weight.of(own, batch) for key, own in tokens.items()}


def return_columns(
    trajectories: Sequence[Trajectory], turn_weights: Mapping[str, TurnWeights] | None
) -> list[list[float]]:
    """What the tokens of each trajectory are credited with: a single column of rewards or, by turn, one column for
    each turn that any of them reached.

    A turn's return is the reward from that turn on: what it and later turns earned, and the reward of the whole
    episode, which no single turn earned. An episode that has ended earns no more and keeps the latter, so every
    column has every trajectory in it; and without per-turn rewards all columns are the rewards.
    """
    if turn_weights is None:
        return [[t.reward for t in trajectories]]
    returns = [turn_returns(t, turn_weights[t.task.env]) for t in trajectories]
    reached = [1 + max((turn for b in t.branches for turn in b.turns), default=0) for t in trajectories]
    turns = max(reached + [len(own) - 1 for own in returns], default=0)
    return [[own[min(turn, len(own) - 1)] for own in returns] for turn in range(turns)]


def turn_returns(trajectory: Trajectory, weights: TurnWeights) -> list[float]:
    """The return of each turn; the last element, after all turns, is the reward of the whole episode."""
    turns = len(trajectory.turn_rewards)
    earned = [
        math.fsum(
            weights.weights.get(name, 1.0) * value / (turns if weights.modes.get(name, "sum") == "mean" else 1)
            for name, value in rewards.items()
        )
        for rewards in trajectory.turn_rewards
    ]
    whole = trajectory.reward - math.fsum(earned)
    return [whole + later for later in reversed([0.0, *itertools.accumulate(reversed(earned))])]


def trajectory_rows(trajectory: Trajectory, advantages: Sequence[float], weight: float) -> list[Row]:
    """A row per branch; `advantages` by turn, or a single one for all turns."""
    rows: list[Row] = []
    for i, b in enumerate(trajectory.branches):
        key = f"{trajectory.id}#{i}"
        if len(advantages) == 1:
            rows.append(Row(key, b.tokens, b.train, b.logprobs, advantages[0], weight))
        else:
            credits = tuple(advantages[turn] for turn, train in zip(b.turns, b.train, strict=True) if train)
            mean = statistics.fmean(credits) if credits else 0.0
            rows.append(CreditedRow(key, b.tokens, b.train, b.logprobs, mean, weight, credits=credits))
    return rows


def _mean_advantage(trajectory: Trajectory, advantages: Sequence[float]) -> float:
    if len(advantages) == 1:
        return advantages[0]
    found = [a for row in trajectory_rows(trajectory, advantages, 1.0) for a in token_advantages(row)]
    return statistics.fmean(found) if found else 0.0


def demonstration_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """Supervised rows: every demonstrated token counts the same."""
    tokens = max(1, sum(t.sampled_tokens for t in trajectories))
    rows = [row for t in trajectories for row in trajectory_rows(t, [1.0], 1 / tokens)]
    return Batch(tuple(rows), {t.id: 1.0 for t in trajectories}, len(trajectories))
