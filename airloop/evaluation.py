"""Held-out evaluation: the same tasks, seeds and sampling each time, saved episode by episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airloop.assemble import Components, held_out_tasks
from airloop.config import Config
from airloop.events import Watcher
from airloop.runs.run import Run
from airloop.success import NAME, name_of
from airloop.types import Trajectory
from airloop.watch.metrics.families import by_family
from airloop.watch.metrics.rows import means


async def evaluate_policy(
    parts: Components, run: Run, watcher: Watcher, step: int, name: str, split: str
) -> list[Trajectory]:
    """The current policy on a split; the run's metrics get a line with means and intervals."""
    settings = parts.config.orchestrator.eval
    plan = held_out_tasks(parts.envs, split, settings.num_examples)
    finished = await _finished(parts, run, name)
    total = len(plan) * settings.rollouts_per_example - len(finished)
    watcher.phase(f"evaluating {name} on held-out tasks ({split})", total)

    def save(trajectory: Trajectory, _: int) -> None:
        run.save_evaluation(trajectory, name)
        watcher.advance()

    sampler = parts.sampler(save)
    result = await sampler.evaluate(
        plan,
        rollouts=settings.rollouts_per_example,
        temperature=settings.temperature,
        version=parts.policy.version,
        step=step,
        finished=finished,
    )
    found = {**summarise(result.trajectories), "task": by_family(result.trajectories)}
    said = {NAME: name_of(parts.envs.values())}
    run.record_evaluation(step, name, {"split": split, "lost": len(result.lost), **said, **found})
    return list(result.trajectories)


async def _finished(parts: Components, run: Run, name: str) -> dict[tuple[int, int], Trajectory]:
    """What a killed session has left of this evaluation. What a run with fewer steps made, before more were asked for,
    is of another policy. All ranks decide on the same, before any of them samples."""
    finished = run.evaluated(name)
    other = any(t.version != parts.policy.version for t in finished.values())
    if not (await parts.ranks.all_gather(other, "what is there of an evaluation"))[0]:
        return finished
    if parts.ranks.first:
        run.set_evaluation_aside(name)
    await parts.ranks.barrier("an evaluation of an earlier policy is set aside")
    return {}


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Mean and 95 % interval, over tasks, of the reward and of every metric."""
    found = means(trajectories)
    return {"episodes": len(trajectories), **{name: interval.as_json() for name, interval in found.items()}}


def wants_base(parts: Components, config: Config) -> bool:
    """Whether the model is evaluated as it was before the supervised start, too."""
    if config.warmstart is None or config.model.adapter:
        return False
    if (asked := config.orchestrator.eval.base) is not None:
        return asked
    here = config.inference.own_weights and parts.policy.peft is not None
    return here and parts.policy.device.type == "cuda" and config.budget.minutes is None
