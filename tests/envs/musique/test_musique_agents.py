"""The oracle solves everything through the tools, the no-op nothing, and the cheat gets no answer."""

from __future__ import annotations

import sys
import time

import pytest
from support.musique_world import DEV, HOTPOT, TRAIN, genuine, make, mean, scripted

from airloop.errors import AirError
from airloop_envs.musique.example import main

SPLITS = ("train", "eval", "test")


@pytest.mark.slow
@pytest.mark.parametrize("retriever", ["lexical", "golden"])
def test_the_oracle_solves_every_generated_question(retriever: str) -> None:
    env = make(retriever=retriever)
    for split in SPLITS:
        for game in scripted(env, "oracle", env.tasks(split)):
            assert game.ending == "done" and game.reward == pytest.approx(1), game.task.id


def test_the_oracle_works_with_one_call_a_reply() -> None:
    env = make(calls_per_turn=1)
    assert mean(scripted(env, "oracle", env.tasks("eval")), "mixture") == pytest.approx(1)


def test_the_noop_has_nothing() -> None:
    env = make()
    assert all(game.reward == 0 and game.ending == "max_turns" for game in scripted(env, "noop", env.tasks("eval")))


@pytest.mark.parametrize("per_turn", [0, 1])
def test_the_cheat_finds_no_answer(per_turn: int) -> None:
    """Who opens and cites everything has the mixture's recall; that is why `balanced` is there."""
    env = make(calls_per_turn=per_turn)
    games = scripted(env, "cheat", env.tasks("eval"))
    assert all(game.metrics["em"] == 0 for game in games)
    assert mean(games, "f1") < 0.05 and mean(games, "mixture") < 0.45 and mean(games, "balanced") < 0.2


def test_demonstrations_are_well_formed_and_of_mixed_skill() -> None:
    env = make(max_turns=4, calls_per_turn=1)
    games = [game for seed in range(4) for game in scripted(env, "demo", env.tasks("eval"), seed)]
    assert all(game.metrics["format"] == 1 and game.ending == "done" for game in games)
    assert 0.3 < mean(games, "recall") < 0.9 and 0.05 < mean(games, "em") < 0.6
    by_task: dict[str, set[float]] = {}
    for game in games:
        by_task.setdefault(game.task.id, set()).add(round(game.reward, 6))
    assert sum(len(rewards) > 1 for rewards in by_task.values()) > 0.9 * len(by_task)
    better = make(max_turns=4, calls_per_turn=1, demo_skill=1.0)
    assert mean(scripted(better, "demo", better.tasks("eval")), "mixture") > mean(games, "mixture") + 0.05


def test_the_same_seed_demonstrates_the_same() -> None:
    env = make()
    one, two, other = (scripted(env, "demo", env.tasks("eval")[:8], seed) for seed in (3, 3, 4))
    assert [g.turns[-1].reply for g in one] == [g.turns[-1].reply for g in two] != [g.turns[-1].reply for g in other]


def test_an_unknown_script_is_told() -> None:
    env = make()
    with pytest.raises(AirError, match="oracle, weak, demo, noop, cheat"):
        env.scripted("wizard", env.tasks("train")[0], 0)


@pytest.mark.slow
def test_two_hundred_and_fifty_six_episodes_at_once_keep_to_themselves() -> None:
    env = make()
    tasks = [*env.tasks("train"), *env.tasks("eval"), *env.tasks("test"), *env.tasks("train")[:16]]
    assert len(tasks) == 256
    for game in scripted(env, "oracle", tasks):
        assert game.reward == pytest.approx(1)


def test_listing_tasks_is_fast() -> None:
    env = make()
    env.tasks("train")
    started = time.perf_counter()
    count = sum(len(env.tasks(split)) for split in SPLITS for _ in range(10))
    assert count / (time.perf_counter() - started) > 1000


def test_an_episode_is_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "prompt=short", "max_turns=3"])
    printed = capsys.readouterr().out
    assert "--- tools" in printed and '"name": "complete"' in printed and "=== done: reward" in printed
    with pytest.raises(SystemExit):
        main(["wizard"])
    assert sys.exc_info()[0] is None


@genuine
@pytest.mark.parametrize("rows", [TRAIN, DEV, HOTPOT], ids=["train", "dev", "hotpotqa"])
def test_scripts_on_genuine_rows(rows: str) -> None:
    env = make(datasets=rows)
    tasks = [task for split in SPLITS for task in env.tasks(split)]
    assert len(tasks) == 100
    oracle, demo, cheat = (scripted(env, name, tasks) for name in ("oracle", "demo", "cheat"))
    assert mean(oracle, "em") == mean(oracle, "recall") == 1 and mean(oracle, "mixture") > 0.99
    assert mean(demo, "mixture") < 0.7 and mean(cheat, "em") == 0
