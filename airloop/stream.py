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
from airloop.budget import Budget, plan_steps
from airloop.clocks import SimulatedClock
from airloop.engine.base import update_served
from airloop.events import Watcher
from airloop.learn.advantages import Batch
from airloop.learn.optimiser import NotFinite
from airloop.learn.report import Report
from airloop.runs.run import Run
from airloop.step import Outcome, Training, evaluate_before, lr_of, monitored
from airloop.supply import SharedSupply, Supply, make_supply
from airloop.watch.metrics.latency import StepClock

T = TypeVar("T")


async def train(parts: Components, run: Run, watcher: Watcher, budget: Budget | None = None) -> Outcome:
    async with monitored(parts, run, watcher, budget) as training:
        before = await evaluate_before(parts, run, watcher, budget)
        await plan_steps(budget, parts, run, watcher)
        await parts.engine.start()  # where ranks meet: not among the groups that are sampled beside
        supply = make_supply(parts, run)
        try:
            await supply.start()
            if budget:
                budget.begin_steps()
            for step in run.remaining_steps():
                await _step(training, supply, step)
        finally:
            await supply.close()
        return await training.outcome(before)


async def _step(training: Training, supply: Supply | SharedSupply, step: int) -> None:
    """take → advantages → update → publish → accept, beside sampling."""
    parts, run = training.parts, training.run
    clock, replayed = StepClock(parts.engine.counters), run.recorded(step)
    supply.held()  # what samplers waited during an evaluation or a checkpoint is no step's
    training.phase(step, "waiting for groups")
    taken, collected = await supply.take(step)
    clock.sampled()
    collected, batch = await training.prepare(step, collected)
    refused = functools.partial(supply.refused, taken)
    try:
        report = await _update(training, supply, batch, lr_of(parts.config, step, run.config.max_steps))
    except NotFinite as error:
        await training.sample_anew(step, error, refused, later=False)
        return
    clock.trained()
    supply.trained()
    made = await training.record(step, collected, batch, report, clock, held=supply.held)
    found = await training.alarms.look(made.metrics, parts.ranks)
    if found.worst and found.refuses:  # what is being sampled is of the same weights
        await supply.close()
        await training.halt(step, found.worst, found, made, refused)
    supply.accepted(taken)
    training.accept(step, made, found)
    await training.finish(step, found, replayed, supply.steps_changed)


async def _update(training: Training, supply: Supply | SharedSupply, batch: Batch, lr: float) -> Report:
    """In a thread of its own, so that episodes go on meanwhile; not on the simulated clock, where nobody else moves."""
    parts = training.parts
    update = functools.partial(parts.learner.update, batch, lr)

    async def compute() -> Report:
        with training.updating():
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
