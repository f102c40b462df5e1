"""The algorithm of loop.py with sampling and training side by side (orchestrator.max_staleness of 1 or more).

The producer admits and samples groups all the while; the learner takes them in the order of admission. What is really
at the same time depends on the engine. Servers of vLLM sample while the learner trains. The embedded engine has one
copy of the weights and one device: replies under way are finished before an update begins, and what goes on beside it
is whatever episodes wait for, tools and graders.

On several ranks, beside servers, the first samples for all: each gets the groups of an update and trains its share of
their rows, as in loop.py.

With deterministic = true both go by a simulated clock: a group is sampled at its admission, by the policy of that
moment, and is there when the durations that are drawn for its episodes have passed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any, TypeVar

from airloop.assemble import Components
from airloop.budget import Budget, keep_to_budget, plan_steps
from airloop.clocks import SimulatedClock
from airloop.engine.base import start_engine, update_served
from airloop.events import Watcher
from airloop.learn.advantages import Batch
from airloop.learn.optimiser import NotFinite
from airloop.learn.report import Report
from airloop.runs.run import Run
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
from airloop.supply import SharedSupply, Supply, make_supply
from airloop.waits import waiting
from airloop.watch.alarms.gap import judge_gap
from airloop.watch.alarms.likeness import Likeness
from airloop.watch.alarms.monitor import Alarms, Halted
from airloop.watch.metrics.ages import age_facts, fresh_gap
from airloop.watch.metrics.facts import step_facts, step_ledger
from airloop.watch.metrics.latency import StepClock
from airloop.watch.metrics.step_metrics import step_record

T = TypeVar("T")


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
    """admit → sample, and beside it take → advantages → update → publish → accept."""
    evaluation = parts.config.orchestrator.eval
    before = await evaluate_before(parts, run, watcher, budget)
    await plan_steps(budget, parts, run, watcher)
    config = parts.config
    await start_engine(parts.engine)  # where ranks meet: not among the groups that are sampled beside
    supply = make_supply(parts, run)
    try:
        await supply.start()
        if budget:
            budget.begin_steps()
        for step in run.remaining_steps():
            clock = StepClock(parts.engine.counters)
            replayed = run.recorded(step)
            watcher.phase(f"step {step + 1}/{run.config.max_steps}: waiting for groups")
            taken, collected = await supply.take(step)
            clock.sampled()
            collected = shaped(parts, collected)
            batch = advantages(parts, collected)
            watcher.phase(f"step {step + 1}/{run.config.max_steps}: training")
            await asyncio.sleep(0)  # Ctrl-C is heard here: an update, once begun, is finished
            try:
                report = await _update(parts, run, supply, batch, lr_of(config, step, run.config.max_steps))
            except NotFinite as error:
                run.refuse(step, error.problem, later=False)
                supply.refused(taken)
                await parts.ranks.meet("what a step sampled that was refused is set aside")
                check_refusal(run, step, run.refusals(step), error)
                if parts.ranks.first:
                    alarms.refused(step, error.problem, run.refusals(step))
                if budget:
                    budget.begin_steps()
                continue
            clock.trained()
            supply.trained()
            ledger = step_ledger(parts, collected, batch, report)
            facts = step_facts(parts, collected, report) | likeness.facts(collected)
            facts |= age_facts(parts, collected, report, step)
            facts |= await judge_gap(parts, batch.rows or batch.silent, report, fresh_gap(facts["ages"]))
            made = step_record(step, collected, batch, report, clock.times(()), ledger, facts)
            found = await alarms.look(made.metrics, parts.ranks)
            if found.worst and found.refuses:  # this update may be at fault, and so may all that is being sampled
                await supply.close()
                run.refuse(step, found.worst.seen, made)
                supply.refused(taken)
                await parts.ranks.meet("what a step sampled that was refused is set aside")
                alarms.tell(found)
                raise Halted(found.worst, run.path, run.refusals(step))
            supply.accepted(taken)
            run.accept(step, made)
            watcher.step(made.metrics)
            likeness.suspect(made.metrics)
            alarms.tell(found)
            finished = step + 1
            if evaluation.interval and finished % evaluation.interval == 0:
                await evaluate(parts, run, watcher, finished, f"step_{finished:04d}", evaluation.split)
            await keep_to_budget(budget, parts, run, watcher, finished, replayed)
            supply.steps_changed()
            marked = finished in (run.config.max_steps, best_step(run))
            if found.worst or marked or finished % config.ckpt.interval == 0:
                checkpoint(parts, run, finished)
            if found.worst and finished < run.config.max_steps:
                raise Halted(found.worst, run.path)
    finally:
        await supply.close()
    after = await evaluate(parts, run, watcher, run.config.max_steps, "after", evaluation.test_split)
    return Outcome(before, after)


async def _update(parts: Components, run: Run, supply: Supply | SharedSupply, batch: Batch, lr: float) -> Report:
    """In a thread of its own, so that episodes go on meanwhile; not on the simulated clock, where nobody else moves."""
    update = functools.partial(parts.learner.update, batch, lr)

    async def compute() -> Report:
        with waiting("the update", "the learner", UPDATE_S, here=True), enough_memory(parts, run):
            simulated = isinstance(supply.clock, SimulatedClock)
            return update() if simulated else await _to_its_end(asyncio.to_thread(update))

    return await update_served(parts.engine, compute, lambda: parts.policy.version)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Whoever is told to stop meanwhile stops after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
