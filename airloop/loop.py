"""The whole algorithm. Sampling and training take turns on one copy of the weights: strictly on-policy.

On several GPUs every rank runs this loop: it samples its share of the groups, gets all of them, and trains its share of
the rows; the updates add up, so all ranks keep the same policy.
"""

from __future__ import annotations

import asyncio

from airloop.assemble import Components, training_schedule
from airloop.budget import Budget, keep_to_budget, plan_steps
from airloop.events import Watcher
from airloop.learn.optimiser import NotFinite
from airloop.rollout.together import torn
from airloop.runs.run import Run
from airloop.runs.step_record import StepRecord
from airloop.step import (
    UPDATE_S,
    Outcome,
    advantages,
    best_step,
    check_refusal,
    checkpoint,
    enough_memory,
    evaluate,
    evaluate_before,
    lr_of,
    shaped,
)
from airloop.types import Trajectory
from airloop.waits import waiting
from airloop.watch.alarms.gap import judge_gap
from airloop.watch.alarms.likeness import Likeness
from airloop.watch.alarms.monitor import Alarms, Halted
from airloop.watch.metrics.facts import step_facts, step_ledger
from airloop.watch.metrics.latency import StepClock
from airloop.watch.metrics.step_metrics import step_record


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
            schedule.heard(line)

    def save(trajectory: Trajectory, step: int) -> None:
        run.save_trajectory(trajectory, step)
        watcher.advance()

    sampler = parts.sampler(save, schedule)
    before = await evaluate_before(parts, run, watcher, budget)
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
        collected = shaped(parts, collected)
        batch = advantages(parts, collected)
        watcher.phase(f"step {step + 1}/{run.config.max_steps}: training")
        await asyncio.sleep(0)  # Ctrl-C is heard here: an update, once begun, is finished
        try:
            async with engine.paused():
                with waiting("the update", "the learner", UPDATE_S, here=True), enough_memory(parts, run):
                    report = learner.update(batch, lr_of(config, step, run.config.max_steps))
        except NotFinite as error:
            await _sample_anew(parts, run, alarms, step, error)
            if budget:
                budget.begin_steps()
            continue
        clock.trained()
        await engine.publish(policy.version)
        ledger = step_ledger(parts, collected, batch, report)
        times = clock.times(collected.groups, {t.id for t in left.values()})
        facts = step_facts(parts, collected, report) | likeness.facts(collected)
        facts |= await judge_gap(parts, batch.rows, report)
        made = step_record(step, collected, batch, report, times, ledger, facts)
        found = await alarms.look(made.metrics, parts.ranks)
        if found.worst and found.refuses:  # this update may be at fault: no checkpoint, and the step comes anew
            refusals = await _refuse(parts, run, step, found.worst.seen, made)
            alarms.tell(found)
            raise Halted(found.worst, run.path, refusals)
        run.accept(step, made)
        schedule.heard(made.metrics)
        watcher.step(made.metrics)
        likeness.suspect(made.metrics)
        alarms.tell(found)
        finished = step + 1
        if evaluation.interval and finished % evaluation.interval == 0:
            await evaluate(parts, run, watcher, finished, f"step_{finished:04d}", evaluation.split)
        await keep_to_budget(budget, parts, run, watcher, finished, replayed)
        if found.worst or finished % config.ckpt.interval == 0 or finished in (run.config.max_steps, best_step(run)):
            checkpoint(parts, run, finished)
        if found.worst and finished < run.config.max_steps:
            raise Halted(found.worst, run.path)
    after = await evaluate(parts, run, watcher, run.config.max_steps, "after", evaluation.test_split)
    return Outcome(before, after)


async def _finished(parts: Components, run: Run, step: int) -> dict[tuple[int, int], Trajectory]:
    """Episodes a killed run left in this step. A deterministic run takes all of a step or nothing: in lock-step
    the batch around an episode must be the same as in a run that was never killed. Of a group that is scored together,
    all or nothing is taken, too."""
    if parts.config.deterministic and not run.recorded(step):
        run.set_aside(step)
        await parts.ranks.meet("what a killed run left is set aside, before new episodes are saved")
        return {}
    left = run.finished(step)
    found = set(torn(left, parts.envs, parts.config.orchestrator.rollouts_per_example))
    # Every rank has read before any samples: what a quicker one saves of this step is not left by a killed run.
    lost = (await parts.ranks.gather(found, "what a killed run has left of a step"))[0]
    if lost and parts.ranks.first:
        run.move_episodes([left[place].id for place in lost], step, f"aside_{step:04d}_groups")
    return {place: t for place, t in left.items() if place not in lost}


async def _refuse(parts: Components, run: Run, step: int, why: str, made: StepRecord | None = None) -> int:
    """Set the step aside; how often that has been done by now, on every rank."""
    run.refuse(step, why, made)
    await parts.ranks.meet("a step that was refused is set aside, before it is sampled anew")
    return run.refusals(step)


async def _sample_anew(parts: Components, run: Run, alarms: Alarms, step: int, error: NotFinite) -> None:
    """After an update that could not be made. It ends the run where that would not help, or not be the same run."""
    refusals = await _refuse(parts, run, step, error.problem)
    check_refusal(run, step, refusals, error)
    if parts.ranks.first:
        alarms.refused(step, error.problem, refusals)
