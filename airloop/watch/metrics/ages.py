"""What a step's tokens look like by their age: how many versions behind the trained policy was the one that sampled
them. A gap at age 0 is a fault, since both sides then have the same weights; one that grows with age is drift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airloop.learn.losses.sequence_mask import SequenceMask, sequence_mask
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
    whole = sequence_mask(loss.model_dump())
    found: dict[str, Any] = {"ages": by_age(collected.groups, report.logprobs, step, (low, high), whole)}
    if versions:
        found["versions"] = {
            "wanted": max(0, step - staleness),
            "wanted_to": step,
            "sampled_from": min(versions),
            "sampled_to": max(versions),
            "policy": parts.policy.version,
            "served": parts.engine.version,
            "mixed": sum(len({*sampled_by(t)}) > 1 for group in groups for t in group.trajectories),
        }
    return found


def by_age(
    groups: Iterable[Group],
    logprobs: Mapping[str, Iterable[float]],
    version: int,
    bounds: tuple[float, float],
    whole: SequenceMask | None = None,
) -> dict[str, dict[str, float]]:
    """Of the trained tokens, by age: their number, the mean gap between trainer and sampler, the share outside of
    the trust region (of the token's `bounds`, or of a mask of whole trajectories), and the effective sample size as a
    share of the number, which is 1 where all have one ratio."""
    found: dict[int, list[_Token]] = {}
    for group in groups:
        for trajectory in group.trajectories:
            logs: list[tuple[int, float]] = []
            for i, branch in enumerate(trajectory.branches):
                trained = [place for place, train in enumerate(branch.train) if train]
                for place, now in zip(trained, map(float, logprobs.get(f"{trajectory.id}#{i}", ())), strict=False):
                    age = version - token_version(trajectory, branch.turns[place])
                    logs.append((age, now - branch.logprobs[place]))
            left_out = whole is not None and any(whole.cut([log for _, log in logs]))
            for age, log in logs:
                weight = math.exp(min(log, 50.0))
                cut = left_out or not bounds[0] <= weight <= bounds[1]
                found.setdefault(age, []).append(_Token(log, weight, cut))
    return {str(age): _figures(tokens) for age, tokens in sorted(found.items())}


class _Token(NamedTuple):
    log: float
    weight: float
    cut: bool


def _figures(tokens: Sequence[_Token]) -> dict[str, float]:
    count = len(tokens)
    return {
        "tokens": count,
        "gap": math.fsum(abs(token.log) for token in tokens) / count,
        "cut": sum(token.cut for token in tokens) / count,
        "ess": math.fsum(t.weight for t in tokens) ** 2 / (count * math.fsum(t.weight * t.weight for t in tokens)),
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
