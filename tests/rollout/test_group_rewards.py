"""Rewards that exist only within a group: given once, weighted like others, the same on resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.rollout_world import Says, ScriptedEngine, StubEnv, chat_tokenizer, command

from airloop.engine.base import Sampling
from airloop.errors import AirError, InfraError
from airloop.rollout.collected import Collected, RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule, place_in_step
from airloop.types import Score, Trajectory

TOKENIZER = chat_tokenizer()


class Ranked(StubEnv):
    """The share of the others that an episode beats."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(finish=lambda s: Score({"solved": float(s.seed % 7)}), **hooks)
        self.reward_weights = {"solved": 0.0, "step": 0.1, "rank": 2.0}
        self.asked: list[int] = []

    def group_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        self.asked.append(len(trajectories))
        scores = [t.rewards["solved"] for t in trajectories]
        return [{"rank": sum(s < own for s in scores) / (len(scores) - 1)} for own in scores]


def collect(env: StubEnv, saved: list[Trajectory], finished: Any = None, **settings: Any) -> Collected:
    engine = ScriptedEngine(TOKENIZER, lambda p, s: command("submit"))
    schedule = TaskSchedule({"e": env}, "train", seed=1)
    rollout = RolloutSettings(Sampling(200), 4, retry_wait_s=0.0, retries=0, **settings)
    sampler = Sampler(engine, TOKENIZER, {"e": env}, rollout, lambda t, _: saved.append(t), schedule)
    return asyncio.run(sampler.collect(0, schedule.batch(0, 3), 0, finished))


def rewards(collected: Collected) -> list[list[tuple[float, Mapping[str, float]]]]:
    return [[(t.reward, t.rewards) for t in g.trajectories] for g in collected.groups]


def test_they_are_given_once_to_a_complete_group_and_weighted() -> None:
    env, saved = Ranked(), []
    found = collect(env, saved)
    assert env.asked == [4, 4, 4]
    for group in found.groups:
        for t in group.trajectories:
            beaten = sum(o.rewards["solved"] < t.rewards["solved"] for o in group.trajectories)
            assert t.rewards["rank"] == beaten / 3
            assert t.reward == pytest.approx(0.1 * 0.5 + 2.0 * beaten / 3)
    assert all("rank" not in t.rewards and t.reward == pytest.approx(0.05) for t in saved)  # the files stay
    env = Ranked()
    env.weigh({"solved": 1.0, "step": 0.0, "rank": 0.0})
    other = collect(env, [])
    assert all(t.reward == t.rewards["solved"] for g in other.groups for t in g.trajectories)


def test_a_resumed_step_computes_the_same_again() -> None:
    saved: list[Trajectory] = []
    whole = collect(Ranked(), saved)
    for left in (5, 12):
        env = Ranked()
        again = collect(env, [], {place_in_step(t.id): t for t in saved[:left]})
        assert rewards(again) == rewards(whole) and env.asked == [4, 4, 4]


def test_signal_is_judged_with_them_and_lost_episodes_are_not_compared() -> None:
    # Every episode scores the same by itself; only the rank sets them apart.
    found = collect(Ranked(), [], online_difficulty_filtering=True)
    assert len(found.groups) == 3 and not found.dropped

    def begin(session: Any) -> None:
        if session.task.id == "task 1" and session.seed == worst:
            raise InfraError("gone")

    worst = next(t.seed for g in found.groups for t in g.trajectories if g.task.id == "task 1")
    env = Ranked(begin=begin)
    again = collect(env, [])
    assert sorted(env.asked) == [3, 4, 4] and sorted(len(g.trajectories) for g in again.groups) == [3, 4, 4]


def test_evaluations_have_no_groups() -> None:
    env = Ranked()
    sampler = Sampler(None, None, {"e": env}, RolloutSettings(Sampling(1), 1), lambda t, _: None)
    plan = TaskSchedule({"e": env}, "train", seed=0).batch(0, 1)
    done = asyncio.run(sampler.evaluate(plan, lambda *_: Says(command("submit")), rollouts=2))
    assert env.asked == [] and all("rank" not in t.rewards for t in done.trajectories)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{"other": 1.0}] * 4, "'other' has no weight"),
        ([{"rank": float("nan")}] * 4, "'rank' is nan"),
        ([{"solved": 1.0}] * 4, "both by the episode and within its group"),
        ([{"step": 1.0}] * 4, "both per turn and for the whole episode"),
        ([{"rank": 1.0}] * 3, "3 mappings for 4 trajectories"),
        (None, "TypeError"),
    ],
)
def test_what_cannot_be_trained_on_is_said(given: Any, words: str) -> None:
    env = Ranked()
    env.group_rewards = lambda _: given  # type: ignore[method-assign]
    with pytest.raises(AirError, match=words) as error:
        collect(env, [])
    assert "group_rewards() of environment 'stub', task 'task" in str(error.value) and error.value.fix
