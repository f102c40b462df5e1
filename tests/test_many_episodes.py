"""256 episodes at once, through the real sampler, template, tokenizer and sessions: only the model is a script."""

from __future__ import annotations

import asyncio
import functools
import gc
import tracemalloc
from importlib.metadata import entry_points

import pytest
from support.scripted_agent_engine import ScriptedEngine

from airloop.engine.base import Sampling
from airloop.envs.base import Environment, load_environment
from airloop.envs.gsm8k.env import CalculatorSession, Gsm8kCalculatorEnv
from airloop.eval.tasks import cached_tokenizer
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.rollout.collected import Collected, RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule
from airloop.types import Task, Trajectory

AT_ONCE = 256
GROUP = 8
REGISTERED = {point.name for point in entry_points(group="airloop.envs")}
SETTINGS = RolloutSettings(Sampling(4096), GROUP, max_concurrent=AT_ONCE, deadline_s=300, retries=0)
# Python's own memory for 256 open episodes and their records. Mostly tokens: a long episode has some ten thousand.
MOST_BYTES = 128 << 20


@functools.cache
def tokenizer() -> ChatTokenizer:
    """The default model's own where it is on this machine."""
    return cached_tokenizer() or ChatTokenizer(tiny_tokenizer(), name="tiny")


def planned(name: str, env: Environment, episodes: int) -> list[Task]:
    return TaskSchedule({name: env}, "train", seed=0).batch(0, episodes // GROUP)


async def play(name: str, env: Environment, plan: list[Task], agent: str = "oracle") -> tuple[Collected, int, int]:
    """What was collected, how many episodes were open at once, how many records were saved."""
    saved: list[Trajectory] = []
    chat = tokenizer()
    together = min(AT_ONCE, len(plan) * GROUP)
    engine = ScriptedEngine(chat, {name: env}, plan, agent=agent, together=together)
    sampler = Sampler(engine, chat, {name: env}, SETTINGS, lambda trajectory, step: saved.append(trajectory))
    collected = await sampler.collect(0, plan, version=0)
    return collected, engine.most_waiting, len(saved)


async def many(name: str) -> tuple[Collected, int, int, int]:
    """play(), and the most memory that Python's objects took meanwhile; what is loaded once is loaded before."""
    tokenizer()
    env = load_environment(name)
    plan = planned(name, env, AT_ONCE)
    env.warm()
    gc.collect()
    tracemalloc.start()
    try:
        return *await play(name, env, plan), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await env.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "arith",
        "gsm8k",
        "gsm8k-calculator",
        pytest.param("tune", marks=[pytest.mark.slow, pytest.mark.soak]),
        pytest.param("musique", marks=[pytest.mark.slow, pytest.mark.soak]),
        pytest.param("soup", marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_256_episodes_at_once_hold_and_each_is_the_oracles(name: str) -> None:
    if name not in REGISTERED:
        pytest.skip(f"{name} is not registered here")
    collected, at_once, saved, peak = asyncio.run(many(name))
    assert at_once == AT_ONCE and saved == AT_ONCE
    trajectories = [t for group in collected.groups for t in group.trajectories]
    assert len(trajectories) == AT_ONCE and {t.ending for t in trajectories} == {"done"}
    assert collected.stats["infra_errors"] == 0
    assert all(sum(branch.train) for t in trajectories for branch in t.branches)
    assert peak < MOST_BYTES
    if name != "tune":  # whose oracle is only good
        assert min(t.reward for t in trajectories) > 0


class CountedSession(CalculatorSession):
    open_now = most = 0

    async def __aenter__(self) -> CountedSession:
        CountedSession.open_now += 1
        CountedSession.most = max(CountedSession.most, CountedSession.open_now)
        return self

    async def __aexit__(self, *_: object) -> None:
        CountedSession.open_now -= 1


class CountedEnv(Gsm8kCalculatorEnv):
    def open(self, task: Task, seed: int) -> CountedSession:
        return CountedSession(task, ("correct",))


@pytest.mark.long
def test_twice_as_many_episodes_as_places_never_hold_more_sessions_than_places() -> None:
    """What waits for its turn has no session yet, so an episode's cost does not depend on the batch's size."""
    env = CountedEnv()
    collected, _, saved = asyncio.run(play(env.name, env, planned(env.name, env, 2 * AT_ONCE)))
    assert saved == sum(len(group.trajectories) for group in collected.groups) == 2 * AT_ONCE
    assert CountedSession.most == AT_ONCE and CountedSession.open_now == 0


@pytest.mark.long
def test_memory_does_not_grow_from_step_to_step() -> None:
    async def main() -> list[int]:
        env = load_environment("gsm8k")
        plan = planned("gsm8k", env, AT_ONCE)
        left = []
        for _ in range(4):
            await play("gsm8k", env, plan)
            gc.collect()
            left.append(tracemalloc.get_traced_memory()[0])
        return left

    tracemalloc.start()
    try:
        left = asyncio.run(main())
    finally:
        tracemalloc.stop()
    assert left[-1] - left[1] < 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "agent"),
    [
        ("gsm8k", "noop"),
        ("gsm8k", "cheat"),
        *(pytest.param("gsm8k-calculator", agent, marks=pytest.mark.soak) for agent in ("noop", "cheat")),
    ],
)
def test_256_empty_and_cheating_episodes_hold_too_and_earn_nothing(name: str, agent: str) -> None:
    async def main() -> Collected:
        env = load_environment(name)
        return (await play(name, env, planned(name, env, AT_ONCE), agent))[0]

    collected = asyncio.run(main())
    assert [t.reward for group in collected.groups for t in group.trajectories] == [0.0] * AT_ONCE
