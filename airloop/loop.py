"""The whole algorithm. Sampling and training take turns on one copy of the weights: strictly on-policy.

On several GPUs every rank runs this loop: it samples its share of the groups, gets all of them, and trains its share of
the rows; the updates add up, so all ranks keep the same policy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from airloop.assemble import Components, training_schedule
from airloop.budget import Budget, keep_to_budget, plan_steps
from airloop.config import Config
from airloop.errors import AirError
from airloop.evaluation import evaluate_policy
from airloop.events import Watcher
from airloop.learn.advantages import Batch, TurnWeights, assign_advantages
from airloop.learn.checkpoints import prune, save_checkpoint
from airloop.learn.memory import memory_told
from airloop.learn.optimiser import NotFinite
from airloop.learn.overlong import Overlong, shape_overlong
from airloop.learn.schedules import scheduled_lr
from airloop.rollout.collected import Collected
from airloop.runs.run import Run
from airloop.runs.step_record import StepRecord
from airloop.success import NAME, success_in
from airloop.types import Trajectory
from airloop.waits import waiting
from airloop.watch.alarms.gap import judge_gap
from airloop.watch.alarms.likeness import Likeness
from airloop.watch.alarms.monitor import Alarms, Halted, set_aside
from airloop.watch.metrics.facts import step_facts, step_ledger
from airloop.watch.metrics.latency import StepClock
from airloop.watch.metrics.step_metrics import step_record

# For one part of an update, a forward and backward pass: minutes at most, on the slowest CPU that we have measured.
UPDATE_S = 1800.0
# In a row, of one step, each time with other episodes: after that it is not the episodes.
MOST_REFUSALS = 3


@dataclass(frozen=True)
class Outcome:
    """Episodes on the held-out tasks before the first step and after the last: the same tasks and seeds."""

    before: list[Trajectory]
    after: list[Trajectory]


async def train(parts: Components, run: Run, watcher: Watcher, budget: Budget | None = None) -> Outcome:
    alarms = Alarms(run, watcher)
    likeness = Likeness(parts.envs, run)
    with alarms.monitoring():
        try:
            return await _train(parts, run, watcher, alarms, likeness, budget)
        finally:
            await likeness.close()


async def _train(
    parts: Components, run: Run, watcher: Watcher, alarms: Alarms, likeness: Likeness, budget: Budget | None
) -> Outcome:
    """sample → advantages → update → publish → accept, with held-out evaluation before, during and after. A step that
    is refused comes again, with other seeds."""
    policy, learner, engine, evaluation = parts.policy, parts.learner, parts.engine, parts.config.orchestrator.eval
    schedule = training_schedule(parts.config, parts.envs)
    for line in run.metrics("train"):
        if line["step"] < run.first_step:
            schedule.heard(line.get("task", {}))

    def save(trajectory: Trajectory, step: int) -> None:
        run.save_trajectory(trajectory, step)
        watcher.advance()

    sampler = parts.sampler(save, schedule)
    before = run.evaluation("before") if run.first_step else []
    before = before or await _evaluate(parts, run, watcher, 0, "before", evaluation.test_split, budget)
    if budget:
        await plan_steps(budget, parts, run, watcher)
        budget.begin_steps()
    config = parts.config
    groups = config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
    for step in run.remaining_steps():
        clock = StepClock(engine.counters)
        replayed = run.recorded(step)
        watcher.phase(f"step {step + 1}/{run.config.max_steps}: sampling", config.orchestrator.batch_size)
        left = await _finished(parts, run, step)
        collected = await sampler.collect(step, schedule.batch(step, groups), policy.version, left, run.refusals(step))
        clock.sampled()
        collected = _shaped(parts, collected)
        batch = _advantages(parts, collected)
        watcher.phase(f"step {step + 1}/{run.config.max_steps}: training")
        await asyncio.sleep(0)  # Ctrl-C is heard here: an update, once begun, is finished
        try:
            async with engine.paused():
                with waiting("the update", "the learner", UPDATE_S, here=True), _enough_memory(parts, run):
                    report = learner.update(batch, _lr(config, step, run.config.max_steps))
        except NotFinite as error:
            await _sample_anew(parts, run, alarms, step, error)
            if budget:
                budget.begin_steps()
            continue
        clock.trained()
        await engine.publish(policy.version)
        ledger = step_ledger(parts, collected, batch, report)
        times = clock.times(collected.groups)
        facts = step_facts(parts, collected, report) | likeness.facts(collected)
        facts |= await judge_gap(parts, batch.rows, report)
        made = step_record(step, collected, batch, report, times, ledger, facts)
        found = await alarms.look(made.metrics, parts.ranks)
        if found.worst and found.refuses:  # this update may be at fault: no checkpoint, and the step comes anew
            refusals = await _refuse(parts, run, step, found.worst.seen, made)
            alarms.tell(found)
            raise Halted(found.worst, run.path, refusals)
        run.accept(step, made)
        schedule.heard(made.metrics["task"])
        watcher.step(made.metrics)
        likeness.suspect(made.metrics)
        alarms.tell(found)
        finished = step + 1
        if evaluation.interval and finished % evaluation.interval == 0:
            await _evaluate(parts, run, watcher, finished, f"step_{finished:04d}", evaluation.split)
        await keep_to_budget(budget, parts, run, watcher, finished, replayed)
        if found.worst or finished % config.ckpt.interval == 0 or finished in (run.config.max_steps, best_step(run)):
            _checkpoint(parts, run, finished)
        if found.worst and finished < run.config.max_steps:
            raise Halted(found.worst, run.path)
    after = await _evaluate(parts, run, watcher, run.config.max_steps, "after", evaluation.test_split)
    return Outcome(before, after)


def _enough_memory(parts: Components, run: Run) -> AbstractContextManager[None]:
    how = f"write it into {run.path / 'config.toml'}, then `air train --resume {run.path}`"
    return memory_told(parts.policy.device, parts.config.trainer.token_budget, how)


def _lr(config: Config, step: int, steps: int) -> float:
    """A budget may change `steps` on the way: the rate then is what the new length says."""
    o = config.trainer.optim
    return scheduled_lr(
        o.schedule, o.lr, step, steps, warmup_steps=o.warmup_steps, decay_steps=o.decay_steps, min_lr=o.min_lr
    )


async def _finished(parts: Components, run: Run, step: int) -> dict[tuple[int, int], Trajectory]:
    """Episodes a killed run left in this step. A deterministic run takes all of a step or nothing: in lock-step
    the batch around an episode must be the same as in a run that was never killed."""
    if parts.config.deterministic and not run.recorded(step):
        run.set_aside(step)
        await parts.ranks.meet("what a killed run left is set aside, before new episodes are saved")
        return {}
    return run.finished(step)


async def _refuse(parts: Components, run: Run, step: int, why: str, made: StepRecord | None = None) -> int:
    """Set the step aside; how often that has been done by now, on every rank."""
    run.refuse(step, why, made)
    await parts.ranks.meet("a step that was refused is set aside, before it is sampled anew")
    return run.refusals(step)


async def _sample_anew(parts: Components, run: Run, alarms: Alarms, step: int, error: NotFinite) -> None:
    """After an update that could not be made. It ends the run where that would not help, or not be the same run."""
    refusals = await _refuse(parts, run, step, error.problem)
    change = f"{error.fix} Change it in {run.path / 'config.toml'}, then go on with `air train --resume {run.path}`."
    if refusals >= MOST_REFUSALS:
        raise AirError(
            f"The update of step {step + 1} could not be made for {refusals} times in a row, each time with other "
            f"episodes. The last time: {error.problem}",
            f"{change} Going on without a change tries once more.",
        ) from error
    if error.moved:  # by an earlier pass over this batch: only the checkpoint has the weights as they were
        raise AirError(
            f"{error.problem} That was a later pass over the batch of step {step + 1}: those before have moved the "
            "weights, so the run ends here, and nothing of this step is kept.",
            f"{change} It goes on as it is, too, from the last checkpoint: {set_aside(run.path, step, refusals)}",
        ) from error
    if parts.ranks.first:
        alarms.refused(step, error.problem, refusals)


def _shaped(parts: Components, collected: Collected) -> Collected:
    """With trainer.loss.overlong, length near its limit has a price in the rewards that are trained on."""
    config, loss = parts.config, parts.config.trainer.loss
    if loss.overlong == "off":
        return collected
    assert loss.overlong_share is not None and loss.overlong_penalty is not None
    limit = config.orchestrator.sampling.max_tokens if loss.overlong == "reply" else config.seq_len
    overlong = Overlong(loss.overlong, limit, loss.overlong_share, loss.overlong_penalty)
    return replace(collected, groups=shape_overlong(collected.groups, overlong))


def _advantages(parts: Components, collected: Collected) -> Batch:
    loss = parts.config.trainer.loss
    by_turn = {n: TurnWeights(env.reward_weights, env.turn_reward_mode) for n, env in parts.envs.items()}
    return assign_advantages(
        collected.groups,
        loss=loss.type,
        scale_rewards=loss.scale_rewards,
        token_constant=parts.config.seq_len,
        keep_zero=loss.kl_beta > 0 or loss.entropy_beta > 0,
        scale_by=loss.scale_by or "group",
        turn_weights=by_turn if loss.credit == "turn" else None,
        filtered=[dropped.group for dropped in collected.dropped if dropped.reason == "no_signal"],
        advantage=loss.advantage,
    )


async def _evaluate(
    parts: Components, run: Run, watcher: Watcher, step: int, name: str, split: str, budget: Budget | None = None
) -> list[Trajectory]:
    """A `budget` learns how long it took: the evaluation behind the last step will take as long."""
    began, found = time.monotonic(), len(run.evaluated(name))
    trajectories = await evaluate_policy(parts, run, watcher, step, name, split)
    await parts.ranks.meet("the evaluation is written down, so that all ranks know the best step")
    watcher.evaluated(run.evaluations()[-1])
    new = len(trajectories) - found
    if budget and new > 0:  # as long as if none of it had been there already
        tasks = len(trajectories) // parts.config.orchestrator.eval.rollouts_per_example
        budget.evaluated((time.monotonic() - began) * len(trajectories) / new, tasks)
    return trajectories


def _checkpoint(parts: Components, run: Run, step: int) -> None:
    directory = run.path / "checkpoints"
    save_checkpoint(directory, parts.learner, step)
    if parts.ranks.first:
        prune(directory, parts.config.ckpt.keep_last, best_step(run))


def best_step(run: Run) -> int | None:
    """The evaluated step with the most success on the `eval` split, if any was evaluated: of several, and where there
    is no success, that with the best mean reward. One with scores that are too good to be true is withheld (D17)."""
    scored = [m for m in run.evaluations() if m["name"].startswith("step_") and m["episodes"]]
    scored = [m for m in scored if not m.get("too_good", {}).get("mean")]
    return max(scored, key=_how_good)["step"] if scored else None


def _how_good(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    success = success_in(evaluation, evaluation.get(NAME))
    return success[1]["mean"] if success else 0.0, evaluation["reward"]["mean"]
