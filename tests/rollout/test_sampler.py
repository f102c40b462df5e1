from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollout_world import Says, ScriptedEngine, StubEnv, chat_tokenizer, command

from airloop.engine.base import Sampling
from airloop.errors import InfraError
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.episode import EpisodeDefect
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule, place_in_step
from airloop.seeds import episode_seed
from airloop.types import Score, Trajectory

TOKENIZER = chat_tokenizer()


def wander(prompt: str, seed: int) -> str:
    """Three to six turns, depending on the task and the draws."""
    return command("submit" if prompt.count("you did") > 1 + seed % 4 else f"look {seed}")


class World:
    def __init__(self, env: StubEnv, engine: ScriptedEngine | None = None, **settings: Any) -> None:
        self.env = env
        self.engine = engine or ScriptedEngine(TOKENIZER, wander)
        self.schedule = TaskSchedule({"e": env}, "train", seed=1)
        defaults = {"rollouts_per_example": 4, "retry_wait_s": 0.0, "seed": 1}
        self.settings = RolloutSettings(Sampling(200), **{**defaults, **settings})
        self.saved: list[Trajectory] = []
        self.sampler = Sampler(
            self.engine,
            TOKENIZER,
            {"e": env},
            self.settings,
            lambda t, step: self.saved.append(t),
            self.schedule,
        )

    async def step(self, step: int = 0, n: int = 4, **more: Any) -> Any:
        return await self.sampler.collect(step, self.schedule.batch(step, n), step, **more)

    def collect(self, *args: Any, **more: Any) -> Any:
        return asyncio.run(self.step(*args, **more))


def test_sixty_four_at_once_each_with_its_own_state() -> None:  # D1
    world = World(StubEnv(tasks=8, max_turns=9), rollouts_per_example=8)
    collected = world.collect(n=8)
    assert world.engine.most == 64
    trajectories = [t for group in collected.groups for t in group.trajectories]
    assert len(trajectories) == 64 == len({t.id for t in world.saved}) == len({t.seed for t in trajectories})
    assert all(t.ending == "done" and 2 < len(t.turns) < 8 for t in trajectories)
    for t in trajectories:
        assert t.task.id in t.turns[0].shown[1]["content"]
        words = [turn.actions[0].text for turn in t.turns[:-1]]
        assert [m["content"] for turn in t.turns[1:] for m in turn.shown] == [f"you did: {w}" for w in words]
    assert all(s.closed and s.finishes == 1 for s in world.env.sessions)
    for group in collected.groups:
        assert {t.task.id for t in group.trajectories} == {group.task.id}
    assert collected.stats["episodes"] == 64 and collected.stats["ended_done"] == 64


def test_no_more_than_max_concurrent_and_members_side_by_side() -> None:
    world = World(StubEnv(), max_concurrent=5)
    world.collect()
    assert world.engine.most == 5
    assert world.engine.orders[:5] == [f"{i:06d}-{s:04d}-000" for i, s in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]]


def test_infra_errors_are_retried_with_the_same_seed_then_dropped_and_counted() -> None:  # D7
    tries: Counter[tuple[str, int]] = Counter()

    def act(session: Any) -> None:
        key = (session.task.id, session.seed)
        if session.acted[1:]:
            return
        tries[key] += 1
        if session.task.id == "task 0" or (session.task.id == "task 1" and tries[key] < 3):
            raise InfraError("gone")

    world = World(StubEnv(act=act, max_turns=9))
    collected = world.collect()
    assert [d.reason for d in collected.dropped] == ["infra_error"]
    assert collected.dropped[0].group.task.id == "task 0"
    assert len(collected.groups) == 3 and all(len(g.trajectories) == 4 for g in collected.groups)
    assert all(t.ending == "done" for g in collected.groups for t in g.trajectories)
    assert collected.stats["infra_errors"] == 4 * 3 + 4 * 2 == sum(t.ending == "infra_error" for t in world.saved)
    assert len({t.id for t in world.saved}) == len(world.saved)  # G8: retries in the same second
    assert set(tries.values()) == {1, 3}


def test_a_group_lives_on_with_two_members_and_dies_with_one() -> None:
    for alive, groups in [(2, 1), (1, 0)]:
        env = StubEnv(tasks=1)
        world = World(env, retries=0)
        good = {episode_seed(1, 0, "e", "task 0", s) for s in range(alive)}
        env.hooks["begin"] = lambda s, good=good: None if s.seed in good else _gone()
        collected = world.collect(n=1)
        assert len(collected.groups) == groups
        survivors = [*collected.groups, *(d.group for d in collected.dropped)][0]
        assert len(survivors.trajectories) == alive


def _gone() -> None:
    raise InfraError("gone")


def test_finished_episodes_are_reused_on_resume() -> None:
    first = World(StubEnv(tasks=6))
    whole = first.collect(step=3)
    finished = {place_in_step(t.id): t for t in first.saved[:7]}
    second = World(StubEnv(tasks=6))
    again = second.collect(step=3, finished=finished)
    assert len(second.saved) == 9 and again.stats["reused"] == 7

    def content(collected: Any) -> Any:
        return [[(t.task, t.seed, t.reward, t.branches) for t in g.trajectories] for g in collected.groups]

    assert content(again) == content(whole)
    all_done = World(StubEnv(tasks=6))
    rest = all_done.collect(step=3, finished={place_in_step(t.id): t for t in first.saved})
    assert all_done.saved == [] and content(rest) == content(whole)


def test_only_what_belongs_to_the_step_is_reused() -> None:
    first = World(StubEnv())
    first.collect(step=2)
    finished = {place_in_step(t.id): t for t in first.saved}
    other = World(StubEnv())
    assert other.collect(step=3, finished=finished).stats["reused"] == 0


@pytest.mark.slow
def test_groups_without_signal_are_replaced_until_there_are_enough() -> None:
    def finish(session: Any) -> Score:
        hard = session.task.payload["i"] % 2
        return Score({"solved": 0.0 if hard else float(session.seed % 2)})

    def collect(factor: float) -> Any:
        env = StubEnv(tasks=20, finish=finish, act=lambda s: None)
        world = World(env, online_difficulty_filtering=True, oversampling_factor=factor, rollouts_per_example=6)
        env.reward_weights = {"solved": 1.0, "step": 0.0}
        return world, world.collect(n=6)

    world, collected = collect(3.0)
    assert len(collected.groups) == 6 and all(g.has_signal for g in collected.groups)
    assert collected.dropped and all(d.reason == "no_signal" for d in collected.dropped)
    tasks = [g.task.id for g in collected.groups] + [d.group.task.id for d in collected.dropped]
    assert len(tasks) == len(set(tasks)) == collected.stats["groups"] + collected.stats["dropped_no_signal"]
    assert len(world.saved) == 6 * len(tasks)
    _, none = collect(1.0)
    assert 0 < len(none.groups) < 6 and len(none.groups) + len(none.dropped) == 6
    _, some = collect(1.5)
    assert len(some.groups) + len(some.dropped) <= 9
    # Resume with filtering: everything is found again, in the same places.
    finished = {place_in_step(t.id): t for t in world.saved}
    resumed = asyncio.run(_resume(world, finished))
    assert resumed.stats["reused"] == len(world.saved)
    assert [g.task.id for g in resumed.groups] == [g.task.id for g in collected.groups]


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(
    fates=st.lists(st.booleans(), min_size=24, max_size=24),
    heard=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=6),
    at_once=st.integers(1, 40),
    factor=st.sampled_from([1.0, 1.5, 2.0, 4.0]),
)
def test_who_begins_ahead_and_when_groups_end_changes_nothing_in_what_is_missing(
    fates: list[bool], heard: list[tuple[int, int]], at_once: int, factor: float
) -> None:
    """As many groups as the last steps lost begin at once; more only while fewer than planned may have signal. So the
    groups of a step follow from their tasks alone, whatever the order in which they end."""
    env = StubEnv(
        tasks=24,
        finish=lambda s: Score({"solved": float(s.seed % 2) if fates[s.task.payload["i"]] else 0.0}),
        act=lambda s: None,
    )
    env.reward_weights = {"solved": 1.0, "step": 0.0}
    filtering = {"online_difficulty_filtering": True, "oversampling_factor": factor, "max_concurrent": at_once}
    world = World(env, rollouts_per_example=6, **filtering)
    for kept, dropped in heard:
        world.schedule.heard({"rollout": {"groups": kept, "dropped_no_signal": dropped}})
    n, step = 4, len(heard)
    collected = world.collect(step=step, n=n)
    kept, dropped = (sum(column[-4:]) for column in zip(*heard, strict=True)) if heard else (0, 0)
    ahead = round(n * dropped / kept) if kept else n if dropped else 0
    most = max(n, int(factor * n))
    plan = [*world.schedule.batch(step, n), *world.schedule.spares(step, n, most - n)]
    signal = {g.task.id for g in collected.groups}
    sampled = [g.task.id for g in collected.groups] + [d.group.task.id for d in collected.dropped]
    begun = min(most, n + ahead)
    while begun < most and sum(task.id in signal for task in plan[:begun]) < n:
        begun += 1
    assert sorted(sampled) == sorted(task.id for task in plan[:begun])


async def _resume(world: World, finished: dict[tuple[int, int], Trajectory]) -> Any:
    before = len(world.saved)
    collected = await world.step(n=6, finished=finished)
    assert len(world.saved) == before
    return collected


def test_a_defect_is_saved_and_stops_the_rest() -> None:  # E3
    def finish(session: Any) -> None:
        if session.task.id == "task 2":
            raise ZeroDivisionError

    world = World(StubEnv(finish=finish), max_concurrent=3)
    with pytest.raises(EpisodeDefect, match="ZeroDivisionError"):
        world.collect()
    defects = [t for t in world.saved if t.error.startswith("defect")]
    assert len(defects) >= 1 and all(s.closed for s in world.env.sessions)
    assert len(world.saved) < 16
    assert world.engine.tracked == 0


def test_cancellation_keeps_what_has_ended_and_closes_the_rest() -> None:
    async def act(session: Any) -> None:
        if session.seed % 2:
            await asyncio.sleep(100)

    world = World(StubEnv(act=act, max_turns=9), max_concurrent=10)

    async def main() -> None:
        task = asyncio.create_task(world.step())
        open_ = world.env.sessions
        deadline = time.monotonic() + 60  # until all have begun, those that end have ended, and the others hang
        while not (
            len(open_) == 16 and len(world.saved) == sum(s.seed % 2 == 0 for s in open_) and all(s.acted for s in open_)
        ):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert world.saved and all(t.ending == "done" for t in world.saved)
    assert len(world.saved) == sum(s.finishes for s in world.env.sessions) < 16
    assert all(s.closed for s in world.env.sessions) and world.engine.tracked == 0


def test_a_hanging_session_holds_nothing_up() -> None:  # D9
    async def act(session: Any) -> None:
        if session.task.id == "task 0":
            await asyncio.sleep(100)

    started = time.monotonic()
    collected = World(StubEnv(act=act, max_turns=9), deadline_s=3.0).collect()
    assert time.monotonic() - started < 50
    assert collected.stats["ended_deadline"] == 4 and len(collected.groups) == 4


@pytest.mark.parametrize("limit", [3, 6])
def test_lock_step_batches_do_not_depend_on_who_was_fast(limit: int) -> None:
    def steps(seed: int) -> list[list[str]]:
        dice = random.Random(seed)
        engine = ScriptedEngine(TOKENIZER, wander, lockstep=True)
        env = StubEnv(
            max_turns=9,
            begin=lambda s: asyncio.sleep(0.002 * dice.random()),
            act=lambda s: asyncio.sleep(0.002 * dice.random()),
            exit=lambda s: asyncio.sleep(0.002 * dice.random()),
        )
        World(env, engine, max_concurrent=limit).collect()
        assert engine.tracked == 0
        return engine.steps

    first = steps(0)
    assert max(map(len, first)) == limit
    assert [len(batch) for batch in first[:-1]].count(limit) > len(first) / 2
    assert first == steps(1) == steps(2)


def test_the_same_seed_gives_the_same_tokens() -> None:
    def tokens(seed: int) -> Any:
        collected = World(StubEnv(), seed=seed).collect()
        return [[t.branches for t in g.trajectories] for g in collected.groups]

    assert tokens(1) == tokens(1) != tokens(2)


class Pinning(ScriptedEngine):
    """Whose groups are answered by one of their own."""

    held = 0

    @contextmanager
    def pinned(self) -> Iterator[ScriptedEngine]:
        self.held += 1
        own = ScriptedEngine(TOKENIZER, wander)
        own.version = self.version
        try:
            yield own
        finally:
            self.held -= 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_is_of_the_version_that_it_was_begun_with_and_holds_it_to_its_last_episodes_end(fails: bool) -> None:
    engine = Pinning(TOKENIZER, wander)

    async def act(session: Any) -> None:
        assert engine.held == 1
        await engine.publish(engine.version + 1)
        if fails:
            raise RuntimeError("a defect of the environment")

    world = World(StubEnv(act=act), engine)
    plan = world.schedule.batch(0, 2)
    work = world.sampler.group(0, plan, 1, 0)
    if fails:
        with pytest.raises(Exception, match="a defect of the environment"):
            asyncio.run(work)
    else:
        (group,) = asyncio.run(work).groups
        turns = [turn for t in group.trajectories for turn in t.turns]
        assert {turn.sampled.version for turn in turns if turn.sampled} == {0} and engine.version == len(turns)
    assert engine.held == 0 and engine.orders == []


def test_evaluate_policy_and_agents_share_the_path() -> None:
    world = World(StubEnv())
    plan = [replace(task, env="e") for task in world.env.tasks("train")]

    async def main() -> None:
        policy = await world.sampler.evaluate(plan, rollouts=2, temperature=0.0, seed=5, version=9, step=3)
        assert [t.task.id for t in policy.trajectories] == [task.id for task in plan for _ in range(2)]
        assert len({t.seed for t in policy.trajectories}) == 8 and policy.lost == ()
        again = await world.sampler.evaluate(plan, rollouts=2, temperature=0.0, seed=5, version=10, step=4)
        assert [t.seed for t in again.trajectories] == [t.seed for t in policy.trajectories]
        scripted = await world.sampler.evaluate(plan, lambda env, task, seed: Says(command("submit")), seed=5)
        assert [len(t.turns) for t in scripted.trajectories] == [1] * 4
        assert [t.seed for t in scripted.trajectories] == [t.seed for t in policy.trajectories[::2]]
        world.env.hooks["begin"] = lambda s: _gone() if s.task.id == "task 1" else None
        broken = await world.sampler.evaluate(plan, rollouts=1, seed=5)
        assert [t.task.id for t in broken.lost] == ["task 1"] and len(broken.trajectories) == 3

    asyncio.run(main())
    assert len({t.id for t in world.saved}) == len(world.saved)


def test_scripted_agents_need_no_engine() -> None:
    env = StubEnv()
    sampler = Sampler(None, None, {"e": env}, RolloutSettings(Sampling(1), 1), lambda t, step: None)
    plan = TaskSchedule({"e": env}, "train", seed=0).batch(0, 1)
    done = asyncio.run(sampler.evaluate(plan, lambda *_: Says(command("submit"))))
    assert done.trajectories[0].ending == "done"
    with pytest.raises(ValueError, match="no engine"):
        asyncio.run(sampler.evaluate(plan))
