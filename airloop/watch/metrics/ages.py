"""What a step's tokens look like by their age: how many versions behind the trained policy was the one that sampled
them. A gap at age 0 is a fault, since both sides then have the same weights; one that grows with age is drift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airloop.types import Group, Trajectory

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.learn.report import Report
    from airloop.rollout.collected import Collected


def age_facts(parts: Components, collected: Collected, report: Report, step: int) -> dict[str, Any]:
    """Of the update that made version `step` + 1 of version `step`."""
    config = parts.config
    loss, staleness = config.trainer.loss, config.orchestrator.max_staleness
    low, high = 0.0, loss.importance_cap
    if loss.anchor == "sampler":
        low, high = 1 - (loss.clip_low or 0.0), 1 + (loss.clip_high or 0.0)
    elif loss.importance_mode == "mask":
        low = loss.importance_floor or 0.0
    groups = [*collected.groups, *(dropped.group for dropped in collected.dropped)]
    versions = [v for group in groups for t in group.trajectories for v in sampled_by(t)]
    found: dict[str, Any] = {"ages": by_age(collected.groups, report.logprobs, step, low, high)}
    if versions:
        found["versions"] = {
            "wanted": max(0, step - staleness),
            "wanted_to": step,
            "sampled_from": min(versions),
            "sampled_to": max(versions),
            "policy": parts.policy.version,
            "served": parts.engine.version,
        }
    return found


def by_age(
    groups: Iterable[Group], logprobs: Mapping[str, Sequence[float]], version: int, low: float, high: float
) -> dict[str, dict[str, float]]:
    """Of the trained tokens, by age: their number, the mean gap between trainer and sampler, the share outside of
    the trust region, and the effective sample size as a share of the number, which is 1 where all have one ratio."""
    ratios: dict[int, list[float]] = {}
    for group in groups:
        for trajectory in group.trajectories:
            for i, branch in enumerate(trajectory.branches):
                trained = [place for place, train in enumerate(branch.train) if train]
                for place, now in zip(trained, logprobs.get(f"{trajectory.id}#{i}", ()), strict=False):
                    age = version - token_version(trajectory, branch.turns[place])
                    ratios.setdefault(age, []).append(now - branch.logprobs[place])
    return {str(age): _figures(found, low, high) for age, found in sorted(ratios.items())}


def _figures(logs: Sequence[float], low: float, high: float) -> dict[str, float]:
    weights = [math.exp(min(log, 50.0)) for log in logs]
    return {
        "tokens": len(logs),
        "gap": math.fsum(map(abs, logs)) / len(logs),
        "cut": sum(not low <= weight <= high for weight in weights) / len(logs),
        "ess": math.fsum(weights) ** 2 / (len(logs) * math.fsum(weight * weight for weight in weights)),
    }


def fresh_gap(ages: Mapping[str, Mapping[str, float]]) -> float | None:
    """Of tokens of the trained policy itself, where there are any."""
    return ages["0"]["gap"] if "0" in ages else None


def token_version(trajectory: Trajectory, turn: int) -> int:
    """Of the policy that sampled a token of this turn."""
    sampled = trajectory.turns[turn].sampled if 0 <= turn < len(trajectory.turns) else None
    return trajectory.version if sampled is None else sampled.version


def sampled_by(trajectory: Trajectory) -> list[int]:
    return [turn.sampled.version for turn in trajectory.turns if turn.sampled is not None]
