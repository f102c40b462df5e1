"""Held-out evaluation: the same tasks, seeds and sampling each time, saved episode by episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from air.assemble import Parts, held_out_tasks
from air.lab.intervals import bootstrap_mean
from air.run import Run
from air.types import Trajectory


async def evaluate_policy(parts: Parts, run: Run, step: int, name: str, split: str) -> list[Trajectory]:
    """The current policy on a split; the run's metrics get a line with means and intervals."""
    settings = parts.config.orchestrator.eval
    plan = held_out_tasks(parts.envs, split, settings.num_examples)
    sampler = parts.sampler(lambda trajectory, _: run.save_evaluation(trajectory, name))
    result = await sampler.evaluate(
        plan,
        rollouts=settings.rollouts_per_example,
        temperature=settings.temperature,
        version=parts.policy.version,
        step=step,
        finished=run.evaluated(name),
    )
    run.record_evaluation(step, name, {"split": split, "lost": len(result.lost), **summarise(result.trajectories)})
    return list(result.trajectories)


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Mean and 95 % interval of the reward and of every metric."""
    if not trajectories:
        return {"episodes": 0}
    values: dict[str, list[float]] = {"reward": [t.reward for t in trajectories]}
    for name in sorted({k for t in trajectories for k in t.metrics}):
        values[name] = [t.metrics.get(name, 0.0) for t in trajectories]
    return {"episodes": len(trajectories), **{k: _row(v) for k, v in values.items()}}


def _row(values: list[float]) -> dict[str, float]:
    interval = bootstrap_mean(values)
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}
