"""The environment `arith`: sums, splits, and that only the right number is paid."""

from __future__ import annotations

import asyncio

import pytest

from airloop.envs.arith import ArithArgs, ArithEnv
from airloop.envs.base import A, EnvArgs, Environment, load_environment
from airloop.errors import AirError
from airloop.types import Action, Task


async def reward_of(env: ArithEnv, task: Task, text: str) -> float:
    async with env.open(task, seed=0) as session:
        await session.begin()
        observation = await session.act(Action("text", text))
        assert observation.done
        return (await session.finish()).rewards["correct"]


async def play(env: ArithEnv, task: Task, name: str, seed: int = 0) -> float:
    opening = await env.open(task, seed).begin()
    reply = await env.scripted(name, task, seed).reply(opening.messages, opening.tools)
    return await reward_of(env, task, reply["content"])


def everything(env: ArithEnv) -> list[Task]:
    return [task for split in ("train", "eval", "test") for task in env.tasks(split)]


def test_oracle_noop_and_cheat_on_every_task() -> None:
    async def main() -> None:
        env = ArithEnv()
        for task in everything(env):
            assert await play(env, task, "oracle") == 1.0
            assert await play(env, task, "noop") == 0.0
            assert await play(env, task, "cheat") == 0.0

    asyncio.run(main())


def test_splits_are_disjoint_also_in_the_other_order_and_training_has_every_digit() -> None:
    env = ArithEnv()
    pairs = {
        split: {frozenset((t.payload["a"], t.payload["b"])) for t in env.tasks(split)}
        for split in ("train", "eval", "test")
    }
    assert not pairs["train"] & pairs["eval"] and not pairs["train"] & pairs["test"]
    assert not pairs["eval"] & pairs["test"]
    assert len(everything(env)) == 100
    assert {t.payload["a"] for t in env.tasks("train")} == set(range(10))
    assert {t.payload["b"] for t in env.tasks("train")} == set(range(10))
    assert len(env.tasks("eval")) >= 8 and len(env.tasks("test")) >= 8


def test_without_splitting_every_split_has_all_pairs() -> None:
    env = ArithEnv(ArithArgs(split_by="none", max_number=4))
    assert [t.id for t in env.tasks("train")] == [t.id for t in env.tasks("eval")]
    assert len(env.tasks("train")) == 25


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("7", 1.0),
        (" 7\n", 1.0),
        ("7 because", 1.0),
        ("07", 0.0),
        ("77", 0.0),
        ("7,8", 0.0),
        ("is 7", 0.0),
        ("٧", 0.0),
    ],
)
def test_only_the_first_number_counts(text: str, reward: float) -> None:
    task = Task("arith", "3+4", "train", {"a": 3, "b": 4, "answer": 7})
    assert asyncio.run(reward_of(ArithEnv(), task, text)) == reward


def test_demonstrations_are_right_as_often_as_told_and_the_same_for_the_same_seed() -> None:
    async def main() -> None:
        env = ArithEnv(ArithArgs(demo_accuracy=0.5))
        task = env.tasks("train")[0]
        rewards = [await play(env, task, "demo", seed) for seed in range(200)]
        assert 70 < sum(rewards) < 130
        assert rewards == [await play(env, task, "demo", seed) for seed in range(200)]

    asyncio.run(main())


def test_it_is_registered_and_refuses_unknown_arguments() -> None:
    env = load_environment("arith", {"max_number": 3})
    assert env.name == "arith" and env.max_turns == 1
    with pytest.raises(AirError, match="max_number"):
        load_environment("arith", {"max_nmber": 3})
    with pytest.raises(AirError, match="scripted"):
        env.scripted("genius", env.tasks("train")[0], 0)


class Wide(ArithArgs):
    factor: int = 1


class WideEnv(ArithEnv):
    Args = Wide


class OneEnv(Environment[Wide]):
    """Has its arguments' class from the brackets."""


class OpenEnv(Environment[A]):
    """A base of several environments, which leaves their arguments open."""


class ClosedEnv(OpenEnv[Wide]):
    pass


def test_an_environment_has_the_arguments_of_its_class_and_takes_no_others() -> None:
    assert (ArithEnv.Args, WideEnv.Args, OneEnv.Args, Environment.Args) == (ArithArgs, Wide, Wide, EnvArgs)
    assert (OpenEnv.Args, ClosedEnv.Args) == (EnvArgs, Wide)
    assert ArithEnv().args == ArithArgs() and WideEnv(Wide(factor=2)).args.factor == 2  # type: ignore[attr-defined]
    with pytest.raises(AirError, match="ArithEnv takes ArithArgs, not EnvArgs"):
        ArithEnv(EnvArgs())  # type: ignore[arg-type]
