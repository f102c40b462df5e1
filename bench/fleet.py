"""Fleets of 8 to 512 samplers beside one learner, simulated: does the learner wait, is a sampler idle?

    python bench/fleet.py                 all fleets, about a minute
    python bench/fleet.py --samplers 512

The admission, the order, the slots and the clock are those of a run (airloop/rollout/admission_queue.py, producer.py,
airloop/clocks.py); only episodes and updates do nothing but take their time. An episode's is log-normal (mean 1, sigma
1) and cut by its deadline at three times that, as orchestrator.episode_timeout_s cuts it. `spare` is what the samplers
could do over what the learner can: below 1 they are what is waited for.

`of best` is the throughput over min(learner rate, sampler rate), `of even` that over the same simulation with episodes
that all take the mean. Whoever keeps the bound waits for an episode that lasts longer than max_staleness updates: the
last rows, with later deadlines and without one, show what that costs.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airloop.clocks import SimulatedClock
from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected
from airloop.rollout.producer import Producer
from airloop.types import Group, Task

ROLLOUTS = 8
SIGMA = 1.0
DEADLINE = 3.0
STEPS, WARM = 40, 10  # updates; the first are the fleet's start
SAMPLERS = (8, 32, 128, 512)
SPARES = (0.5, 1.0, 1.25, 2.0)
KEPT = Collected((Group(Task("fleet", "1", "train"), 0, ()),), (), {})
# What is asked for at staleness 4.
MOST_IDLE, LEAST = 0.05, 0.90
AMPLE = 1.25  # the learner is not to wait where samplers have a quarter more than it needs


@dataclass
class Fleet:
    samplers: int
    spare: float
    staleness: int
    deadline: float = DEADLINE
    even: bool = False
    waited: float = 0.0
    ages: list[int] = field(default_factory=list)

    @property
    def groups(self) -> int:
        """Of an update: an episode for each sampler, and no fewer than is usual."""
        return max(64, self.samplers) // ROLLOUTS

    @property
    def mean(self) -> float:
        return mean_length(self.deadline)

    @property
    def update(self) -> float:
        """How long the learner takes, so that the samplers have `spare` times what it needs."""
        return self.spare * self.groups * ROLLOUTS * self.mean / self.samplers

    @property
    def best(self) -> float:
        """Updates a second, if nobody ever waited for a straggler."""
        return min(1.0, self.spare) / self.update

    def length(self, number: int, sample: int) -> float:
        if self.even:
            return self.mean
        drawn = random.Random(f"{number} {sample}").lognormvariate(-(SIGMA**2) / 2, SIGMA)
        return min(drawn, self.deadline)

    async def sample(self, producer: Producer, admitted: Admitted) -> Collected:
        await producer.play(admitted.number, [self.length(admitted.number, i) for i in range(ROLLOUTS)])
        return KEPT

    async def run(self) -> float:
        """Updates a second."""
        clock, queue = SimulatedClock(), AdmissionQueue(self.groups, self.groups, self.staleness)
        producer = Producer(
            queue, self.sample, clock, slots=self.samplers, rollouts=ROLLOUTS, steps=lambda: STEPS + self.staleness + 1
        )
        producer.start()
        began = 0.0
        for step in range(STEPS):
            if step == WARM:
                began, self.waited = clock.now, 0.0
            asked = clock.now
            taken = await producer.take()
            self.waited += clock.now - asked
            self.ages += [step - group.version for group in taken] if step >= WARM else []
            await clock.spend(self.update)
            producer.trained()
        whole = clock.now - began
        self.waited /= whole
        await producer.close()
        return (STEPS - WARM) / whole


def mean_length(deadline: float) -> float:
    """Of a log-normal of mean 1 that is cut at the deadline."""
    if math.isinf(deadline):
        return 1.0

    def below(z: float) -> float:
        return (1 + math.erf(z / math.sqrt(2))) / 2

    z = (math.log(deadline) + SIGMA**2 / 2) / SIGMA
    return below(z - SIGMA) + deadline * (1 - below(z))


@dataclass(frozen=True)
class Measured:
    fleet: Fleet
    of_best: float
    of_even: float

    @property
    def line(self) -> str:
        fleet = self.fleet
        age = statistics.fmean(fleet.ages)
        return (
            f"{fleet.samplers:8d} {fleet.groups * ROLLOUTS:6d} {fleet.spare:6.2f} {fleet.staleness:9d} {age:9.2f} "
            f"{max(fleet.ages):7d} {fleet.waited:9.1%} {self.of_best:8.1%} {self.of_even:8.1%}"
        )


def measure(fleet: Fleet) -> Measured:
    rate, even = asyncio.run(fleet.run()), asyncio.run(replace(fleet, even=True, ages=[]).run())
    return Measured(fleet, rate / fleet.best, rate / even)


def table(title: str, fleets: list[Fleet], say: Callable[[str], None] = print) -> list[Measured]:
    say(f"\n{title}\nsamplers  batch  spare staleness  mean age  oldest  learner idle  of best  of even")
    found = []
    for fleet in fleets:
        found.append(measure(fleet))
        say(found[-1].line)
    return found


def missed(found: list[Measured]) -> list[str]:
    """What is asked for at staleness 4 and these do not reach, whatever the deadline."""
    problems = []
    for one in found:
        name = f"{one.fleet.samplers} samplers, spare {one.fleet.spare:g}, deadline at {one.fleet.deadline:g} means"
        if one.fleet.spare >= AMPLE and one.fleet.waited >= MOST_IDLE:
            problems.append(f"{name}: the learner is idle for {one.fleet.waited:.1%}")
        if one.of_best < LEAST:
            problems.append(f"{name}: {one.of_best:.1%} of min(learner rate, sampler rate)")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samplers", type=int, nargs="*", default=SAMPLERS)
    wanted = parser.parse_args().samplers
    began = time.perf_counter()
    table("staleness 0: turns", [Fleet(n, spare, 0) for n in wanted for spare in (1.0, 2.0)])
    table("staleness 1", [Fleet(n, spare, 1) for n in wanted for spare in SPARES])
    found = table("staleness 4", [Fleet(n, spare, 4) for n in wanted for spare in SPARES])
    for deadline, name in ((4.0, "at 4"), (math.inf, "none")):
        found += table(
            f"staleness 4, deadline {name}", [Fleet(n, spare, 4, deadline) for n in wanted for spare in (1.0, 2.0)]
        )
    problems = missed(found)
    print(f"\n{time.perf_counter() - began:.0f} s. At staleness 4:", *(problems or ["all as asked for"]), sep="\n  ")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
