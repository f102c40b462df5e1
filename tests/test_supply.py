"""Groups for the learner through every kind of failure: nothing lost, nothing twice, the bound kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rollout_world import StubEnv

from airloop.config import load_config
from airloop.engine.base import Counters, EngineFailed
from airloop.rollout.collected import Collected, Dropped, EpisodeSlot, Place, Save
from airloop.runs.run import Run
from airloop.supply import Supply
from airloop.types import Branch, Group, Message, Sampled, Task, Trajectory, Turn

ROLLOUTS, GROUPS, STALENESS = 2, 4, 3
CHECKPOINT = 3  # updates between two of them: the others are made again


class Killed(Exception):
    """kill -9: nothing more is written."""


class ScriptedSampler:
    """Episodes that end in any order. About one group in 20 meets a failure: the engine's, the machinery's, or the end
    of the process. Tokens have the version that is served when they are sampled."""

    def __init__(self, world: World, save: Save) -> None:
        self.world, self.save = world, save

    async def group(
        self,
        step: int,
        plan: Sequence[Task],
        number: int,
        version: int,
        finished: Mapping[Place, Trajectory],
        slot: EpisodeSlot,
    ) -> Collected:
        dice = self.world.dice
        trouble = dice.choice(["killed", "engine", "lost"]) if dice.random() < 1 / 20 else ""
        if all((number, sample) in finished for sample in range(ROLLOUTS)):
            trouble = ""
        found = [
            finished.get((number, sample)) or await self._episode(step, number, sample, version, slot, trouble)
            for sample in range(ROLLOUTS)
        ]
        task = Task("stub", str(number), "train")
        group = Group(task, version, tuple(found))
        spoilt = any(t.ending == "infra_error" for t in found)
        return Collected((), (Dropped(group, "infra_error"),), {}) if spoilt else Collected((group,), (), {})

    async def _episode(
        self, step: int, number: int, sample: int, version: int, slot: EpisodeSlot, trouble: str
    ) -> Trajectory:
        world = self.world
        async with slot():
            for _ in range(int(world.dice.paretovariate(1.0)) % 200):
                await asyncio.sleep(0)
            if trouble == "killed" and sample:
                raise Killed
            if trouble == "engine" and sample:
                raise EngineFailed("The engine is gone.", "resume.")
            sampled = Sampled((1,), (-1.0,), "stop", world.served)
            turn = Turn((), Message(role="assistant", content="x"), sampled, (), ())
            branch = Branch((1,), (True,), (-1.0,), (0,))
            world.episodes += 1
            world.counters.abandoned += world.episodes % 5
            made = Trajectory(
                f"{number}_pi{version}_x{world.episodes}_{number}-{sample}",
                *(
                    Task("stub", str(number), "train"),
                    0,
                    version,
                    (turn,),
                    (branch,),
                    "infra_error" if trouble == "lost" else "done",
                ),
                *({}, (), {}, float(sample), 0.0, 0.0),
            )
            self.save(made, step)
            return made


class World:
    """A run whose policy is a number, and whose learner remembers what it was given."""

    def __init__(self, directory: Path, steps: int, seed: int, **more: str) -> None:
        words = {
            "output_dir": str(directory),
            "max_steps": str(steps),
            "orchestrator.batch_size": str(GROUPS * ROLLOUTS),
            "orchestrator.rollouts_per_example": str(ROLLOUTS),
            "orchestrator.max_staleness": str(STALENESS),
            "orchestrator.max_concurrent": "12",
            "trainer.loss.importance_mode": "mask",
            **more,
        }
        self.config = load_config([word for key, value in words.items() for word in (f"--{key}", value)])
        self.run = Run.create(self.config, "stub")
        self.dice = random.Random(seed)
        self.served = self.episodes = self.deaths = 0
        self.counters = Counters()  # of an engine whose replies are not all waited for
        self.weights: list[list[int]] = []  # by update: the groups that it was made of
        self.saved = 0  # updates in the checkpoint

    def parts(self) -> Any:
        def sampler(save: Save, schedule: object) -> ScriptedSampler:
            return ScriptedSampler(self, save)

        return SimpleNamespace(config=self.config, engine=self, envs={"stub": StubEnv(7)}, sampler=sampler)

    async def live(self) -> None:
        """Until it is done, or dies."""
        self.run.first_step = self.served = self.saved
        del self.weights[self.saved :]
        supply, abandoned = Supply(self.parts(), self.run), self.counters.abandoned
        try:
            await supply.start()
            for step in range(self.saved, self.config.max_steps):
                taken, collected = await supply.take(step)
                abandoned += collected.stats["abandoned_tokens"]
                assert abandoned == self.counters.abandoned, "of every token it is said what became of it"
                for group in collected.groups:
                    versions = [t.turns[0].sampled.version for t in group.trajectories if t.turns[0].sampled]
                    assert step - STALENESS <= group.version <= min(versions) <= max(versions) <= step
                await asyncio.sleep(0)
                self.weights.append(list(taken.numbers))
                self.served = step + 1
                supply.trained()
                supply.accepted(taken)
                if (step + 1) % CHECKPOINT == 0:
                    self.saved = step + 1
        finally:
            await supply.close()

    def run_to_the_end(self) -> None:
        while len(self.weights) < self.config.max_steps:
            try:
                asyncio.run(self.live())
            except (Killed, EngineFailed):
                self.deaths += 1
                assert self.deaths < 1000


def check(directory: Path, groups: int, seed: int, **more: str) -> World:
    world = World(directory, groups // GROUPS, seed, **more)
    world.run_to_the_end()
    numbers = [number for update in world.weights for number in update]
    assert numbers == list(range(len(numbers)))  # in order; none lost, none twice
    return world


FILTERED = {"orchestrator.buffer.online_difficulty_filtering": "true", "orchestrator.oversampling_factor": "2"}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("more", [{}, FILTERED], ids=["all", "filtered"])
def test_H13_nothing_is_lost_and_nothing_twice_through_failures(
    tmp_path: Path, more: dict[str, str], seed: int
) -> None:
    world = check(tmp_path, 160, seed, **more)
    assert world.deaths > 1


@pytest.mark.soak
def test_two_thousand_groups_with_a_failure_in_every_twenty(tmp_path: Path) -> None:
    world = check(tmp_path, 2000, 0, **FILTERED)
    assert world.deaths > 20
