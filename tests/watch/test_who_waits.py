"""Sampling beside training, in its steady state: who waits for whom is measured, and the next change is named."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airloop import stream
from airloop.clocks import WallClock
from airloop.engine.base import Counters
from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected
from airloop.rollout.producer import Producer
from airloop.types import Group, Task
from airloop.watch.alarms.episode_rules import EDGE, one_side_waits_for_the_other

KEPT = Collected((Group(Task("stub", "1", "train"), 0, ()),), (), {})


def steps(sampling: float, held: float, count: int = EDGE) -> list[dict[str, Any]]:
    return [{"times": {"sampling": sampling, "training": 10 - sampling, "sync": 0.0, "held": held}}] * count


@pytest.mark.parametrize(
    ("sampling", "held", "why", "fix"),
    [
        (5.0, 0.1, "The samplers are slower", "orchestrator.max_concurrent"),
        (0.1, 6.0, "The learner is slower", "trainer.token_budget"),
        (5.0, 4.0, "Both wait for the longest episodes", "orchestrator.episode_timeout_s"),
    ],
)
def test_who_is_slower_is_named_with_the_next_change(sampling: float, held: float, why: str, fix: str) -> None:
    *before, step = steps(sampling, held)
    sign = one_side_waits_for_the_other(step, before)
    assert sign and sign.why.startswith(why) and fix in sign.fix and f"{sampling / 10:.0%}" in sign.seen


def test_nothing_is_said_where_neither_waits_for_more_than_a_third_or_for_a_few_steps_only_or_in_turns() -> None:
    *before, step = steps(3.3, 3.3)
    assert one_side_waits_for_the_other(step, before) is None
    *before, step = steps(9.0, 0.0, EDGE - 1)
    assert one_side_waits_for_the_other(step, before) is None
    turns = [{"times": {"sampling": 9.0, "training": 1.0, "sync": 0.0}}] * 9
    assert one_side_waits_for_the_other(turns[0], turns) is None


@pytest.mark.parametrize(("episode", "update", "least", "most"), [(0.0, 0.1, 0.6, 1.0), (0.05, 0.0, 0.0, 0.3)])
def test_what_samplers_wait_is_measured(episode: float, update: float, least: float, most: float) -> None:
    """Of the time: nearly all of it with a slow learner, little with a quick one."""

    async def sample(producer: Producer, admitted: Admitted) -> Collected:
        async with producer.episode_slot(admitted.number):
            await asyncio.sleep(episode)
        return KEPT

    async def share() -> float:
        producer = Producer(AdmissionQueue(1, 1, 1), sample, WallClock(), slots=1, rollouts=1, steps=lambda: 100)
        producer.start()
        began, before = asyncio.get_running_loop().time(), producer.held_s()
        for _ in range(6):
            await producer.take()
            await asyncio.sleep(update)
            producer.trained()
        whole, held = asyncio.get_running_loop().time() - began, producer.held_s() - before
        await producer.close()
        return held / whole

    assert least <= asyncio.run(share()) <= most


def test_what_samplers_waited_between_two_steps_is_not_the_next_ones() -> None:
    """During an evaluation, say: or "the learner is slower" would be said of a run that is evaluated often."""
    asked: list[str] = []

    class Ended(Exception): ...

    class Counted:
        def held(self) -> dict[str, float]:
            asked.append("held")
            return {}

        async def take(self, step: int) -> None:
            asked.append("take")
            raise Ended

    parts = SimpleNamespace(engine=SimpleNamespace(counters=Counters()))
    training = SimpleNamespace(parts=parts, run=SimpleNamespace(recorded=lambda _: False), phase=lambda *_: None)
    with pytest.raises(Ended):
        asyncio.run(stream._step(training, Counted(), 0))  # type: ignore[arg-type]
    assert asked == ["held", "take"]
