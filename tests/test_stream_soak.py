"""Sampling beside training through many failures, on the simulated clock: episodes, groups, admission, books and
episodes' files are a run's own; only replies are scripted, and an update is a number."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rollout_world import ScriptedEngine, StubEnv, StubSession, chat_tokenizer, command

from airloop import supply
from airloop.config import load_config
from airloop.engine.base import Counters, EngineFailed, Generation, Sampling, TokenCallback
from airloop.errors import InfraError
from airloop.files import read_lines
from airloop.rollout.collected import Collected, RolloutSettings, Save
from airloop.rollout.episode import EpisodeDefect
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import Names, TaskSchedule
from airloop.runs.run import Run, read_trajectories
from airloop.types import Trajectory
from airloop.watch.metrics.ledger import Terms, account, returned_tokens

ROLLOUTS, GROUPS, STALENESS = 2, 4, 3
EVERY = 20  # groups, one of which meets a failure
CHECKPOINT = 3  # updates between two of them: the others are made again
TOKENIZER = chat_tokenizer()
NOTHING: Any = SimpleNamespace(rows=())  # a batch: what is trained of tokens is not looked at here


class Killed(Exception):
    """kill -9: nothing more is written."""


class World(ScriptedEngine):
    """A run, its engine, and all that befalls them. Each failure is due when so many groups have been begun."""

    def __init__(self, directory: Path, groups: int, seed: int) -> None:
        super().__init__(TOKENIZER, lambda prompt, seed: command("submit" if seed % 3 else "look, then submit"))
        words = {
            "output_dir": str(directory),
            "max_steps": str(groups // GROUPS),
            "deterministic": "true",
            "orchestrator.batch_size": str(GROUPS * ROLLOUTS),
            "orchestrator.rollouts_per_example": str(ROLLOUTS),
            "orchestrator.max_staleness": str(STALENESS),
            "orchestrator.max_concurrent": "12",
            "trainer.loss.importance_mode": "mask",
        }
        self.config = load_config([word for key, value in words.items() for word in (f"--{key}", value)])
        self.run = Run.create(self.config, "stub")
        self.dice = random.Random(seed)
        self.env = StubEnv(7, act=self._act)
        self.counters = Counters()
        self.names = Names()  # sessions follow each other within a second here
        self.begun: set[str] = set()  # groups, of this session
        self.seen = 0  # groups that were begun, in all sessions
        self.due = ""  # the failure that comes next, wherever it can
        self.met: Counter[str] = Counter()
        self.spoilt = ""  # the task whose episodes the machinery spoils for now
        self.dead = False
        self.in_air = 0  # tokens of replies whose episode has not been saved
        self.died = 0  # those of them that a killed process took with it
        self.made: list[list[int]] = []  # by update: the groups that it was made of
        self.ledger: dict[str, dict[str, int]] = {}  # tokens of episodes, by where the step's are
        self.abandoned = 0  # that ledgers of this session say
        self.saved = 0  # updates in the checkpoint

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        group = order.partition("-")[0]
        if group not in self.begun:
            self.begun.add(group)
            self.seen += 1
            if self.seen % EVERY == 0:
                self.due = self.dice.choice(["killed", "server", "infra", "spoilt", "refused", "halted"])
        if self.due == "server":
            self._happened()
            raise EngineFailed("No server of vLLM is left.", "resume.")
        await asyncio.sleep(0)
        ids = self.reply(token_ids, sampling)
        self.counters.sampled += len(ids)
        self.in_air += len(ids)
        if self.dice.random() < 0.1:  # of another reply, which nobody waited for to its end
            self.counters.abandoned += 3
        return Generation(tuple(ids), (-0.5,) * len(ids), "stop", self.version, 0, 0.1, 0.2)

    def _happened(self) -> None:
        self.met[self.due] += 1
        self.due = ""

    def _act(self, session: StubSession) -> None:
        if self.due in ("infra", "spoilt"):
            self.spoilt = session.task.id if self.due == "spoilt" else ""
            self._happened()
            raise InfraError("the sandbox is gone")
        if session.task.id == self.spoilt:
            raise InfraError("and it stays away")

    def parts(self) -> Any:
        settings = RolloutSettings(
            Sampling(200), rollouts_per_example=ROLLOUTS, seed=0, max_concurrent=12, retry_wait_s=0.0, retries=1
        )

        def sampler(save: Save, schedule: TaskSchedule) -> Sampler:
            def keep(t: Trajectory, step: int) -> None:
                if self.due == "killed":
                    self._happened()
                    self.dead = True
                if self.dead:
                    raise Killed
                save(t, step)
                self.in_air -= returned_tokens(t)

            return Sampler(self, TOKENIZER, {"stub": self.env}, settings, keep, schedule, names=self.names)  # type: ignore[arg-type]

        return SimpleNamespace(config=self.config, engine=self, envs={"stub": self.env}, sampler=sampler)

    async def session(self) -> None:
        """Until it is done, or dies."""
        self.run.first_step = self.version = self.saved
        del self.made[self.saved :]
        self.counters, self.abandoned = Counters(), 0
        self.begun.clear()
        self.dead = False
        fed, step = supply.Supply(self.parts(), self.run), self.saved
        try:
            await fed.start()
            while step < self.config.max_steps:
                taken, collected = await fed.take(step)
                self.look(step, collected)
                found = account(collected, NOTHING, {}, Terms(), {})
                tokens = {name: sum(columns.values()) for name, columns in found.episodes.items()}
                self.abandoned += (cut := int(collected.stats.get("abandoned_tokens", 0)))
                assert self.abandoned == self.counters.abandoned, "of every token it is said what became of it"
                assert sum(tokens.values()) + cut == found.metrics["tokens"]
                self.spoilt = ""
                if self.due in ("refused", "halted"):
                    self.ledger[f"refused_{step:04d}_{self.run.refusals(step) + 1}"] = tokens
                    halted = self.due == "halted"
                    self._happened()
                    if halted:
                        await fed.close()
                    self.run.refuse(step, "its gradient is not finite", later=halted)
                    fed.refused(taken)
                    if halted:
                        raise Killed
                    continue
                self.made.append(list(taken.numbers))
                self.ledger[f"step_{step:04d}"] = tokens
                self.version = step = step + 1
                fed.trained()
                fed.accepted(taken)
                if step % CHECKPOINT == 0:
                    self.saved = step
            assert self.in_air == 0, "at the end nothing is under way"
        finally:
            await fed.close()

    def look(self, step: int, collected: Collected) -> None:
        for group in collected.groups:
            versions = [turn.sampled.version for t in group.trajectories for turn in t.turns if turn.sampled]
            assert step - STALENESS <= group.version <= min(versions) <= max(versions) <= step


def soak(directory: Path, groups: int, seed: int) -> World:
    world = World(directory, groups, seed)
    total = 0
    while len(world.made) < world.config.max_steps:
        try:
            asyncio.run(world.session())
        except (Killed, EpisodeDefect):
            assert world.met.total() < 1000
        total += world.counters.sampled
        world.died, world.in_air = world.died + world.in_air, 0
    # Every group that was admitted is in one update or in one that was refused, in the order of admission.
    lines = read_lines(world.run.path / "stream.jsonl")
    trained = [line for line in lines if "trained" in line]
    assert [line["step"] for line in trained] == list(range(world.config.max_steps))
    assert world.made == [sorted(line["trained"] + line["dropped"]) for line in trained]
    ended = [sorted(line.get("trained", line.get("refused")) + line["dropped"]) for line in lines if "dropped" in line]
    numbers = [number for update in ended for number in update]
    assert sorted(numbers) == list(range(len(numbers))), "nothing is lost, and nothing is trained twice"
    assert [n for update in world.made for n in update] == sorted(n for update in world.made for n in update)
    # What the engine's counters say was sampled is in the ledger of an update, or was set aside, spoilt or lost with
    # the process that it was sampled in.
    folders = {folder.name: read_trajectories(folder) for folder in (world.run.path / "trajectories").iterdir()}
    known = [t for found in folders.values() for t in found]
    assert len(known) == len({t.id for t in known}), "no episode is in two places"
    in_books = Counter(name for tokens in world.ledger.values() for name in tokens)
    assert max(in_books.values()) == 1, "and none in two updates"
    for where, tokens in world.ledger.items():
        found = {t.id: t for t in folders[where]}
        assert tokens == {name: returned_tokens(t) for name, t in found.items() if name in tokens}
        left = found.keys() - tokens.keys()
        assert {found[name].ending for name in left} <= {"infra_error"}, "attempts of a session that died"
    assert sum(map(returned_tokens, known)) + world.died == total
    return world


def test_a_failure_in_every_twenty_groups(tmp_path: Path) -> None:
    for seed in range(2):
        world = soak(tmp_path / str(seed), 60, seed)
        assert world.met.total() >= 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1])
def test_two_thousand_groups_with_a_failure_in_every_twenty(tmp_path: Path, seed: int) -> None:
    world = soak(tmp_path, 2000, seed)
    assert world.met.total() >= 100 and all(world.met.values()) and len(world.met) == 6
