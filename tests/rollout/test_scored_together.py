"""Groups whose members are scored together, by their environment: once all have ended, saved once, never 0 for what
the machinery did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from support.endpoint_world import CHAT, Recorded, trained_rows, user

from airloop import loop
from airloop.config import load_config
from airloop.engine.base import Sampling
from airloop.errors import AirError, InfraError
from airloop.ranks import Ranks
from airloop.rollout.collected import Collected, RolloutSettings
from airloop.rollout.group_scoring import incomplete_groups
from airloop.rollout.program import Address, EmptyReplies, ProgramCrashed, ProgramEnvironment
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule, place_in_step
from airloop.rollout.scripted import run_agent
from airloop.runs.run import Run
from airloop.types import Score, Task, Trajectory

Fault = Callable[[Task, int], Exception | None]


class Longest(ProgramEnvironment):
    """The share of the others that said less."""

    name: ClassVar[str] = "longest"
    success: ClassVar[str | None] = "spoke"
    reward_weights = {"rank": 2.0, "spoke": 0.5}  # noqa: RUF012

    def __init__(self, play_fault: Fault = lambda *_: None, score_fault: Callable[[int], Any] = lambda _: None) -> None:
        super().__init__()
        self.play_fault, self.score_fault = play_fault, score_fault
        self.kept: dict[str, str] = {}
        self.asked: list[list[str]] = []

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(self.name, f"task {i}", split) for i in range(3)]

    async def play(self, task: Task, seed: int, address: Address) -> Score:
        async with httpx.AsyncClient(timeout=30, verify=False) as http:
            answer = await http.post(
                f"{address.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {address.api_key}"},
                json={"messages": [user(task.id)]},
            )
        self.kept[address.episode] = answer.json()["choices"][0]["message"]["content"]
        if fault := self.play_fault(task, seed):
            raise fault
        return Score({})

    @property
    def scores_groups(self) -> bool:
        return True

    async def score_group(self, episodes: Sequence[str]) -> Sequence[Score]:
        self.asked.append(list(episodes))
        if fault := self.score_fault(len(self.asked)):
            if fault == "slow":
                await asyncio.sleep(100)
            raise fault
        said = [len(self.kept[id]) for id in episodes]
        ranks = [sum(other < own for other in said) / max(len(said) - 1, 1) for own in said]
        return [Score({"rank": r, "spoke": 1.0}, {"letters": n}) for r, n in zip(ranks, said, strict=True)]

    def forget(self, episodes: Sequence[str]) -> None:
        for id in episodes:
            self.kept.pop(id, None)


def sampler_of(env: Longest, saved: list[Trajectory], **settings: Any) -> tuple[Sampler, TaskSchedule, Recorded]:
    engine = Recorded(lambda prompt, seed: "x" * (seed % 89 + 1))
    schedule = TaskSchedule({"longest": env}, "train", seed=1)
    rollout = RolloutSettings(Sampling(200), 4, **{"retry_wait_s": 0.0, "retries": 0, **settings})
    return Sampler(engine, CHAT, {"longest": env}, rollout, lambda t, _: saved.append(t), schedule), schedule, engine


def collect(env: Longest, saved: list[Trajectory], finished: Any = None, **settings: Any) -> Collected:
    sampler, schedule, engine = sampler_of(env, saved, **settings)
    found = asyncio.run(sampler.collect(0, schedule.batch(0, 3), 0, finished))
    if finished is None:
        assert trained_rows(*saved) == sorted(engine.pairs), "a trained row is no request and its response"
    assert not env.kept, "what was kept of episodes is forgotten with their group"
    return found


def rewards(found: Collected) -> list[list[float]]:
    return [[t.reward for t in group.trajectories] for group in found.groups]


def places(saved: Sequence[Trajectory]) -> dict[Any, Trajectory]:
    return {place_in_step(t.id): t for t in saved}


@pytest.mark.parametrize("at_once", [64, 2, 1])
def test_members_wait_for_each_other_and_for_no_seat(at_once: int) -> None:
    """Also where fewer episodes run at once than a group has."""
    env, saved = Longest(), list[Trajectory]()
    found = collect(env, saved, max_concurrent=at_once)
    assert sorted(map(len, env.asked)) == [4, 4, 4] and len(saved) == len({t.id for t in saved}) == 12
    for group in found.groups:
        said = [t.metrics["letters"] for t in group.trajectories]
        for t in group.trajectories:
            rank = sum(other < t.metrics["letters"] for other in said) / 3
            assert t.rewards == {"rank": rank, "spoke": 1.0} and t.reward == pytest.approx(2 * rank + 0.5)
            assert t.metrics["success"] == 1.0 and t.metrics["scored_together"] == 4
            assert any(t == one for one in saved), "the file has the score of its group"
    assert len({reward for group in rewards(found) for reward in group}) > 1


def test_a_member_that_is_lost_is_not_compared_and_one_that_crashed_has_nothing() -> None:
    spoilt = {"task 0": InfraError("gone"), "task 1": ProgramCrashed("it fell")}
    first: dict[str, int] = {}

    def fault(task: Task, seed: int) -> Exception | None:
        return spoilt.get(task.id) if first.setdefault(task.id, seed) == seed else None

    env, saved = Longest(fault), list[Trajectory]()
    found = collect(env, saved)
    groups = {group.task.id: group.trajectories for group in found.groups}
    assert sorted(map(len, env.asked)) == [3, 3, 4] and found.stats["lost"] == 1 and len(saved) == 12
    assert [t.metrics["scored_together"] for t in groups["task 0"]] == [3.0] * 3
    (fell,) = [t for t in groups["task 1"] if t.metrics["crashed"]]
    assert len(groups["task 1"]) == 4 and fell.reward == 0.0 and "scored_together" not in fell.metrics
    assert sorted(t.metrics.get("scored_together", 0) for t in groups["task 1"]) == [0, 3, 3, 3]


def test_a_group_that_is_nearly_lost_is_dropped() -> None:
    seen: dict[str, int] = {}

    def fault(task: Task, seed: int) -> Exception | None:
        only = seen.setdefault(task.id, seed)
        return InfraError("gone") if task.id == "task 0" and seed != only else None

    found = collect(Longest(fault), [])
    assert [d.reason for d in found.dropped] == ["infra_error"] and len(found.groups) == 2


@pytest.mark.parametrize("fault", [InfraError("the judge is away"), "slow"])
def test_a_score_that_fails_is_tried_again(fault: Any) -> None:
    env, saved = Longest(score_fault=lambda number: fault if number == 1 else None), list[Trajectory]()
    found = collect(env, saved, retries=1, finish_s=0.5)
    assert len(env.asked) == 4 and len(found.groups) == 3 and len(saved) == 12
    assert found.stats["infra_errors"] == found.stats["retried"] == 1 and not found.stats["lost"]


def test_a_score_that_cannot_be_had_drops_the_group_and_is_never_0() -> None:
    def fault(number: int) -> Exception | None:
        return InfraError("the judge is away") if number in broken else None

    env, saved, broken = Longest(score_fault=fault), list[Trajectory](), {1, 2}
    found = collect(env, saved, retries=1, max_concurrent=1)
    assert len(found.groups) == 2 and [d.reason for d in found.dropped] == ["infra_error"]
    lost = [t for t in saved if t.ending == "infra_error"]
    assert len(lost) == 4 and all("could not be scored: the judge is away" in t.error and t.turns for t in lost)
    assert (
        len(saved) == 12 and [t.id for t in found.spoilt] == [t.id for t in lost] and found.stats["infra_errors"] == 2
    )


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([Score({"rank": float("nan"), "spoke": 1.0})] * 4, "'rank' is nan"),
        ([Score({"other": 1.0, "spoke": 1.0})] * 4, "'other' has no weight"),
        ([Score({"rank": 1.0})] * 4, "no such metric"),
        ([Score({"rank": 1.0, "spoke": 1.0})] * 3, "shorter"),
    ],
)
def test_a_score_that_is_none_ends_the_run_with_its_episodes_saved(scores: list[Score], said: str) -> None:
    class Strange(Longest):
        async def score_group(self, episodes: Sequence[str]) -> Sequence[Score]:
            return scores

    env, saved = Strange(), list[Trajectory]()
    with pytest.raises(AirError, match=said) as told:
        collect(env, saved, max_concurrent=1)
    assert "environment 'longest', task 'task" in str(told.value) and told.value.fix
    assert len(saved) == 4 and all(t.ending == "infra_error" and t.error.startswith("defect: ") for t in saved)


def test_a_resumed_step_takes_a_group_as_a_whole_or_plays_it_anew() -> None:
    saved: list[Trajectory] = []
    whole = collect(Longest(), saved, max_concurrent=1)
    for left, reused in ((12, 12), (11, 8), (6, 4), (3, 0)):
        env, again = Longest(), list[Trajectory]()
        found = collect(env, again, places(saved[:left]), max_concurrent=1)
        assert rewards(found) == rewards(whole) and found.stats["reused"] == reused and len(again) == 12 - reused
        assert len(env.asked) == 3 - reused // 4


def test_a_comparison_with_others_is_not_used_again() -> None:
    """What is left at its places is not of one comparison."""
    saved: list[Trajectory] = []
    collect(Longest(), saved, max_concurrent=1)
    first = True

    def falls(task: Task, seed: int) -> Exception | None:
        nonlocal first
        first, now = False, first
        return ProgramCrashed("it fell") if now else None

    other: list[Trajectory] = []
    collect(Longest(falls), other, max_concurrent=1)
    (fell,) = [t for t in other if t.metrics["crashed"]]
    env = Longest()
    assert collect(env, [], places([*saved, fell])).stats["reused"] == 8 and len(env.asked) == 1
    assert collect(Longest(), [], places(other)).stats["reused"] == 12


def test_what_is_left_of_torn_groups_is_told_apart() -> None:
    saved: list[Trajectory] = []
    collect(Longest(), saved, max_concurrent=1)
    assert not incomplete_groups(places(saved), {"longest": Longest()}, 4)
    found = incomplete_groups(places(saved[:11]), {"longest": Longest()}, 4)
    assert {t.id for t in found.values()} == {t.id for t in saved[8:11]}


@pytest.mark.parametrize("rollouts", [1, 3])
def test_evaluations_score_the_episodes_of_a_task_together(rollouts: int) -> None:
    env, saved = Longest(), list[Trajectory]()
    sampler, schedule, _ = sampler_of(env, saved)
    done = asyncio.run(sampler.evaluate(schedule.batch(0, 3), rollouts=rollouts))
    assert list(map(len, env.asked)) == [rollouts] * 3 and not env.kept
    assert all(t.metrics["scored_together"] == rollouts and "rank" in t.rewards for t in done.trajectories)


def test_a_group_of_a_stream_is_scored_as_any_other() -> None:
    env, saved = Longest(), list[Trajectory]()
    sampler, schedule, _ = sampler_of(env, saved)
    plan = schedule.batch(2, 3)
    found = asyncio.run(sampler.group(2, plan, 7, 0))
    assert [len(group.trajectories) for group in found.groups] == [4] and list(map(len, env.asked)) == [4]


def test_a_script_is_a_group_by_itself() -> None:
    env = Longest()
    task = env.tasks("train")[0]

    async def both() -> list[Trajectory]:
        return await asyncio.gather(*(run_agent(env, task, EmptyReplies(), id="same", seed=0) for _ in range(2)))

    for played in asyncio.run(both()):
        assert (played.id, played.ending, played.metrics["scored_together"]) == ("same", "done", 1.0)
        assert played.rewards == {"rank": 0.0, "spoke": 1.0}
    assert not env.kept


class Pair(Ranks):
    """One of two ranks in an event loop: whoever gathers waits for the other."""

    size = 2

    def __init__(self, rank: int, values: list[Any], both: asyncio.Barrier) -> None:
        self.rank, self._values, self._both = rank, values, both

    async def all_gather(self, value: Any, what: str, deadline_s: float = 0.0) -> list[Any]:
        self._values[self.rank] = value
        await self._both.wait()
        return [*self._values]


def test_what_a_quicker_rank_has_saved_is_not_left_by_a_killed_run(tmp_path: Path) -> None:
    """A member that crashed is saved before its group is whole. The slower rank took it for torn, moved it away and
    held a meeting to which nobody came."""
    run = Run.create(load_config(["arith", "--output_dir", str(tmp_path)]), "arith")
    task = Task("arith", "0", "train")
    crashed = Trajectory(
        "0_pi5_20261118T100000_1-0", task, 1, 5, (), (), "done", {"r": 0.0}, (), {"crashed": 1.0}, 0.0, 0.0, 0.0
    )

    async def rank(number: int, values: list[Any], both: asyncio.Barrier) -> dict[Any, Trajectory]:
        parts: Any = SimpleNamespace(config=run.config, ranks=Pair(number, values, both), envs={"arith": Longest()})
        if number == 0:
            await asyncio.sleep(0.1)  # it writes a checkpoint
        left = await loop._finished(parts, run, 5)
        run.save_trajectory(crashed, 5)
        return left

    async def both() -> list[Any]:
        given: Any = ([None, None], asyncio.Barrier(2))
        return await asyncio.gather(rank(0, *given), rank(1, *given))

    assert asyncio.run(both()) == [{}, {}]
    run.close()
    assert [p.parent.name for p in (run.path / "trajectories").rglob("*.json")] == ["step_0005"]
