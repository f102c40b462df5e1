"""Scripted researchers: how many demonstrations an expert gives, and the levels of a checkout's games, whose opponents
are other ones than ours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.data import BUILTIN
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.researchers import LEVELS, checkout, researcher
from airloop_envs.mlgym.spec import TaskSpec

GAMES = ("prisonersDilemma", "battleOfSexes", "blotto")
Plan = Callable[[list[Any]], Any]


def spec_of(key: str) -> TaskSpec:
    return replace(load_task(BUILTIN, key), builtin=True)


def shares_of_experts(skill: float | None) -> float:
    said = {} if skill is None else {"demo_skill": skill}
    env = MlgymEnv(MlgymArgs(task_configs=["battleOfSexes"], source="builtin", standby=0, **said))
    task = next(iter(env.tasks("train")))
    replies = [asyncio.run(env.scripted("demo", task, seed).reply([], []))["content"] for seed in range(400)]
    return mean("give it a turn" in reply for reply in replies)  # the best reply, which nobody else writes


@pytest.mark.parametrize(
    ("skill", "low", "high"), [(None, 0.02, 0.09), (0.0, 0.0, 0.0), (0.3, 0.23, 0.37), (1.0, 1, 1)]
)
def test_demo_skill_is_the_share_of_demonstrations_that_an_expert_gives(
    skill: float | None, low: float, high: float
) -> None:
    assert low <= shares_of_experts(skill) <= high


def prisoner(history: list[tuple[int, int]], rng: random.Random) -> int:
    """Each move is by one of several characters, most of which hardly look at what was played."""
    last = history[-1][0] if history else rng.randrange(2)
    return rng.choice((0, 1, rng.randrange(2), int(rng.random() < 0.2), last))


def partner(history: list[tuple[int, int]], rng: random.Random) -> int:
    if not history:
        return 1
    return history[0][0] if rng.random() < 0.8 else 1 - history[0][0]


def general(rng: random.Random) -> list[int]:
    drawn = [rng.randint(0, 120) for _ in range(6)]
    plan = [count * 120 // sum(drawn) for count in drawn]
    plan[rng.randrange(6)] += 120 - sum(plan)
    return plan


def worth(key: str, plan: Plan, rng: random.Random) -> float:
    """What a strategy earns against opponents as a checkout's are said to be."""
    if key == "blotto":
        fields = [(plan([]), general(rng)) for _ in range(1500)]
        leads = [sum((a > b) - (a < b) for a, b in zip(*both, strict=True)) for both in fields]
        return mean((lead > 0) - (lead < 0) for lead in leads)
    opponent, payoffs = (prisoner, ((3, 0), (5, 1))) if key == "prisonersDilemma" else (partner, ((2, 0), (0, 1)))
    earned = []
    for _ in range(600):
        history: list[tuple[int, int]] = []
        for _ in range(10):
            history.append((plan(history), opponent(history, rng)))
        earned.append(mean(payoffs[mine][its] for mine, its in history))
    return mean(earned)


def drafted(key: str, level: str, seed: int) -> Plan:
    names: dict[str, Any] = {}
    exec(checkout.DRAFTS[key](level, random.Random(seed)).text, names)
    plan: Plan = names["row_strategy"]
    return plan


@pytest.mark.long
@pytest.mark.parametrize("key", GAMES)
def test_each_level_is_better_than_the_one_below_against_a_checkouts_opponents(key: str) -> None:
    random.seed(0)  # strategies may mix at random
    rng = random.Random(0)
    levels = [mean(worth(key, drafted(key, level, seed), rng) for seed in range(12)) for level in LEVELS]
    assert levels == sorted(levels), dict(zip(LEVELS, levels, strict=True))
    if key != "prisonersDilemma":  # its opponent is not the checkout's, only of that kind
        assert levels[-1] == pytest.approx({"battleOfSexes": 1.44, "blotto": 0.25}[key], abs=0.03)


@pytest.mark.parametrize("key", GAMES)
def test_a_task_of_a_checkout_gets_the_checkouts_expert(key: str) -> None:
    theirs = replace(spec_of(key), builtin=False)
    reply = asyncio.run(researcher("oracle", theirs, 0, 4).reply([], []))["content"]
    names: dict[str, Any] = {}
    exec(reply.split("strategy.py\n")[1].split("\nEOF")[0], names)
    played = names["row_strategy"]([])
    best = {"prisonersDilemma": 1, "battleOfSexes": 0, "blotto": [0, 0, 30, 30, 30, 30]}[key]
    assert (sorted(played) if key == "blotto" else played) == best
