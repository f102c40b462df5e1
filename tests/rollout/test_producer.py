"""Samplers beside a learner, on the simulated clock: hundreds of episodes of any length in a moment."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from airloop.clocks import SimulatedClock, WallClock
from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected
from airloop.rollout.producer import Producer
from airloop.types import Group, Task

ROLLOUTS, UPDATE = 4, 1.0


@dataclass
class Fleet:
    """A scripted one: episodes have lengths, and some groups nothing to train on."""

    staleness: int
    seats: int = 32
    groups: int = 4
    most: int = 4
    steps: int = 12
    seed: int = 0
    dropped: float = 0.0
    longest: dict[int, float] = field(default_factory=dict)  # of these groups, an episode's length
    fails: int = -1
    trained: list[list[int]] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    begun: list[tuple[float, int]] = field(default_factory=list)
    most_in_slots: int = 0
    clock: SimulatedClock = field(init=False)

    async def sample(self, producer: Producer, admitted: Admitted) -> Collected:
        self.begun.append((self.clock.now, admitted.number))
        dice = random.Random(f"{self.seed} {admitted.number}")
        lengths = [dice.lognormvariate(-0.5, 1.0) for _ in range(ROLLOUTS)]
        lengths[0] = self.longest.get(admitted.number, lengths[0])
        await producer.play(admitted.number, lengths)
        if admitted.number == self.fails:
            raise ZeroDivisionError("an environment's defect")
        self.most_in_slots = max(self.most_in_slots, producer._taken)
        kept = dice.random() >= self.dropped
        return Collected((Group(Task("stub", "1", "train"), 0, ()),) if kept else (), (), {})

    async def run(self) -> Fleet:
        self.clock = SimulatedClock()
        queue = AdmissionQueue(self.groups, self.most, self.staleness)
        producer = Producer(
            queue, self.sample, self.clock, slots=self.seats, rollouts=ROLLOUTS, steps=lambda: self.steps
        )
        producer.start()
        try:
            for step in range(self.steps):
                taken = await producer.take()
                await self.clock.spend(UPDATE)
                self.trained.append([group.number for group in taken])
                self.ages += [step - group.version for group in taken]
                producer.trained()
        finally:
            await producer.close()
        return self


def run(**settings: object) -> Fleet:
    return asyncio.run(Fleet(**settings).run())  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_H15_the_bound_is_kept_and_groups_are_trained_once_in_order(staleness: int, seed: int) -> None:
    dropped = 0.3 if seed % 2 else 0.0
    fleet = run(staleness=staleness, seed=seed, dropped=dropped, most=8 if dropped else 4)
    numbers = [number for step in fleet.trained for number in step]
    assert numbers == list(range(len(numbers)))
    assert max(fleet.ages) <= staleness and fleet.most_in_slots <= fleet.seats
    assert (max(fleet.ages) == staleness) or staleness == 0


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    assert run(staleness=2, seed=1).begun == run(staleness=2, seed=1).begun != run(staleness=2, seed=2).begun


def test_H15_a_long_episode_is_waited_for_and_the_others_go_on_meanwhile() -> None:
    fleet = run(staleness=2, seats=200, longest={5: 40.0})
    assert 5 in fleet.trained[1]
    meanwhile = [number for when, number in fleet.begun if 5.0 < when < 40.0]
    assert not meanwhile  # the bound: nothing may be begun that would be too old by then
    assert fleet.begun[-1][0] > 40.0 and len(fleet.begun) == 48


def test_what_ends_the_sampling_reaches_the_learner() -> None:
    with pytest.raises(ZeroDivisionError, match="defect"):
        run(staleness=1, fails=6)


def test_who_waits_for_what_nobody_does_is_told() -> None:
    async def wait() -> None:
        await SimulatedClock().until(lambda: False)

    with pytest.raises(RuntimeError, match="all wait for each other"):
        asyncio.run(asyncio.wait_for(wait(), 5))


def test_by_the_time_of_day_sampling_goes_on_while_the_learner_works() -> None:
    """The same producer on the wall clock: groups end while an update is being made."""

    async def beside() -> list[int]:
        ended: list[int] = []

        async def sample(producer: Producer, admitted: Admitted) -> Collected:
            async with producer.episode_slot(admitted.number):
                await asyncio.sleep(0.001)
            ended.append(admitted.number)
            return Collected((Group(Task("stub", "1", "train"), 0, ()),), (), {})

        producer = Producer(AdmissionQueue(1, 1, 2), sample, WallClock(), slots=4, rollouts=1, steps=lambda: 8)
        producer.start()
        await producer.take()
        await asyncio.sleep(0.05)  # the update
        found = list(ended)
        await producer.close()
        return found

    assert asyncio.run(beside()) == [0, 1, 2]
