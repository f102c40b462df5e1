"""The whole algorithm. Sampling and training take turns on one copy of the weights: strictly on-policy.

On several GPUs every rank runs this loop: it samples its share of the groups, gets all of them, and trains its share of
the rows; the updates add up, so all ranks keep the same policy.
"""

from __future__ import annotations

from airloop.assemble import Components, training_schedule
from airloop.budget import Budget, plan_steps
from airloop.events import Watcher
from airloop.learn.optimiser import NotFinite
from airloop.rollout.group_scoring import incomplete_groups
from airloop.runs.run import Run
from airloop.step import Outcome, Training, evaluate_before, lr_of, monitored
from airloop.types import Trajectory
from airloop.watch.metrics.latency import StepClock


async def train(parts: Components, run: Run, watcher: Watcher, budget: Budget | None = None) -> Outcome:
    async with monitored(parts, run, watcher, budget) as training:
        return await _train(training, parts, run, watcher, budget)


async def _train(training: Training, parts: Components, run: Run, watcher: Watcher, budget: Budget | None) -> Outcome:
    """sample → advantages → update → publish → accept, with held-out evaluation before, during and after. A step that
    is refused comes again, with other seeds."""
    policy, learner, engine = parts.policy, parts.learner, parts.engine
    schedule = training_schedule(parts.config, parts.envs)
    for line in run.metrics("train"):
        if line["step"] < run.first_step:
            schedule.heard(line)

    def save(trajectory: Trajectory, step: int) -> None:
        run.save_trajectory(trajectory, step)
        watcher.advance()

    sampler = parts.sampler(save, schedule)
    before = await evaluate_before(parts, run, watcher, budget)
    await plan_steps(budget, parts, run, watcher)
    if budget:
        budget.begin_steps()
    episodes = parts.config.orchestrator.batch_size
    groups = episodes // parts.config.orchestrator.rollouts_per_example
    for step in run.remaining_steps():
        clock, replayed = StepClock(engine.counters), run.recorded(step)
        training.phase(step, "sampling", episodes)
        left = await _finished(parts, run, step)
        collected = await sampler.collect(step, schedule.batch(step, groups), policy.version, left, run.refusals(step))
        clock.sampled()
        collected, batch = await training.prepare(step, collected)
        try:
            async with engine.paused():
                with training.updating():
                    report = learner.update(batch, lr_of(parts.config, step, run.config.max_steps))
        except NotFinite as error:
            await training.sample_anew(step, error)
            continue
        clock.trained()
        await engine.publish(policy.version)
        made = await training.record(step, collected, batch, report, clock, {t.id for t in left.values()})
        found = await training.alarms.look(made.metrics, parts.ranks)
        if found.worst and found.refuses:
            await training.halt(step, found.worst, found, made)
        training.accept(step, made, found, schedule.heard)
        await training.finish(step, found, replayed)
    return await training.outcome(before)


async def _finished(parts: Components, run: Run, step: int) -> dict[tuple[int, int], Trajectory]:
    """Episodes a killed run left in this step. A deterministic run takes all of a step or nothing: in lock-step
    the batch around an episode must be the same as in a run that was never killed. Of a group that is scored together,
    all or nothing is taken, too."""
    if parts.config.deterministic and not run.recorded(step):
        run.set_aside(step)
        await parts.ranks.barrier("what a killed run left is set aside, before new episodes are saved")
        return {}
    left = run.finished(step)
    found = set(incomplete_groups(left, parts.envs, parts.config.orchestrator.rollouts_per_example))
    # Every rank has read before any samples: what a quicker one saves of this step is not left by a killed run.
    lost = (await parts.ranks.all_gather(found, "what a killed run has left of a step"))[0]
    if lost and parts.ranks.first:
        run.move_episodes([left[place].id for place in lost], step, f"aside_{step:04d}_groups")
    return {place: t for place, t in left.items() if place not in lost}
