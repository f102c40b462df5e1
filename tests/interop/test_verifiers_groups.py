"""Environments of verifiers that compare the rollouts of a task: rewards of groups as the library gives them, and what
becomes of a group that cannot be scored."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.endpoint_world import Recorded, trained_rows
from support.interop_world import PROGRAMS, interpreter
from support.program_runs import program_run
from support.rollout_world import ScriptedEngine, chat_tokenizer
from support.verifiers_world import CHAT, OURS, opened, play

from airloop.config import load_config
from airloop.config.toml import toml_value
from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.loop import _finished
from airloop.ranks import Ranks
from airloop.rollout.collected import Collected, RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.run import Run
from airloop.training import start
from airloop.types import Trajectory
from airloop.verifiers.env import VerifiersEnv
from airloop.watch.display.display import Display

pytestmark = pytest.mark.interop
REPLIES = ("{}", "{}!", "I say {}.", "I would rather not.")


def groups_of(kind: str) -> VerifiersEnv:
    return opened("v0", OURS / "group_v0.py", kind=kind)


def speaker() -> Callable[[str, int], str]:
    """Of the rollouts of a word each says something else, in the order in which they ask."""
    asked: dict[str, Any] = {}

    def speak(prompt: str, seed: int) -> str:
        word = re.findall(r"Say (\w+)\.", prompt)[-1]
        return next(asked.setdefault(word, itertools.cycle(REPLIES))).format(word)

    return speak


def collect(
    env: VerifiersEnv, groups: int = 2, rollouts: int = 4, retries: int = 0
) -> tuple[Collected, list[Trajectory]]:
    chat, saved = chat_tokenizer(), list[Trajectory]()
    engine = Recorded(speaker(), tokenizer=chat)
    settings = RolloutSettings(Sampling(200), rollouts, retries=retries, retry_wait_s=0.0, deadline_s=180)
    schedule = TaskSchedule({env.name: env}, "train", seed=0)
    sampler = Sampler(engine, chat, {env.name: env}, settings, lambda t, _: saved.append(t), schedule)
    found = asyncio.run(sampler.collect(0, schedule.batch(0, groups), 0))
    assert trained_rows(*saved) == sorted(engine.pairs), "a trained row is no request and its response"
    return found, saved


def alone(folder: Path, kind: str, row: dict[str, Any]) -> list[dict[str, float]]:
    """What the library by itself makes of a group of that row."""
    told = {"folder": str(OURS), "name": "group_v0", "args": {"kind": kind}, "row": row, "rollouts": len(REPLIES)}
    (folder / "rows.jsonl").write_text(json.dumps(told))
    given = {"tasks": str(folder / "rows.jsonl"), "python": interpreter("verifiers-v0"), "success": "none"}
    env = load_environment(f"{PROGRAMS / 'verifiers_alone.py'}:solve_group_v0", given)
    env.weigh({"whole.0": 1.0})
    chat, saved = chat_tokenizer(), list[Trajectory]()
    settings = RolloutSettings(Sampling(200), 1, retries=0, deadline_s=180)
    sampler = Sampler(ScriptedEngine(chat, speaker()), chat, {env.name: env}, settings, lambda t, _: saved.append(t))
    try:
        asyncio.run(sampler.evaluate([task for split in ("train", "eval", "test") for task in env.tasks(split)]))
    finally:
        env.abandon()
    found: list[dict[str, float]] = [{} for _ in REPLIES]
    for name, value in saved[0].metrics.items():
        if "." in name:
            found[int(name.rpartition(".")[2])][name.rpartition(".")[0]] = value
    return found


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("group", {"correct": 1.0, "briefest": 0.5}),
        ("two", {"correct": 1.0, "briefest": 0.5}),
        ("shares", {"total": 1.0}),
        ("mixed", {"total": 1.0}),
    ],
)
def test_rewards_of_a_group_are_those_that_the_library_gives(
    kind: str, weights: dict[str, float], tmp_path: Path
) -> None:
    env = groups_of(kind)
    assert env.scores_groups and env.reward_weights == weights
    found, saved = collect(env)
    assert len(found.groups) == 2 and len(saved) == 8 and not found.dropped
    group = found.groups[0]
    apart = alone(tmp_path, kind, dict(group.task.payload))
    names = apart[0].keys() - {"whole"}
    ours = [{"whole": t.reward, **{name: t.metrics[name] for name in names}} for t in group.trajectories]
    assert sorted(sorted(one.items()) for one in ours) == sorted(sorted(one.items()) for one in apart)
    assert len({t.reward for t in group.trajectories}) > 1 and "correct" in names
    assert all(t.metrics["scored_together"] == 4 and t.metrics["reward_errors"] == 0 for t in saved)
    assert all(t.ending == "done" and t.rewards.keys() == weights.keys() for t in saved)


def test_functions_of_no_weight_are_metrics_and_scripts_cannot_earn_a_comparison() -> None:
    env = groups_of("group")
    assert set(env.components) >= {"correct", "briefest", "members"} and env.beyond_scripts == ["briefest", "members"]
    _, saved = collect(env, groups=1, rollouts=3)
    assert all(t.metrics["members"] == 3 and "members" not in t.rewards for t in saved)
    assert not groups_of("fails").described["whole"] and not opened("v0", OURS / "first_v0.py").scores_groups


@pytest.mark.parametrize(
    ("kind", "said"), [("fails", "ValueError: a defect of the comparison"), ("short", "IndexError")]
)
def test_a_group_that_cannot_be_scored_is_dropped_and_never_0(kind: str, said: str) -> None:
    found, saved = collect(groups_of(kind), retries=1)
    assert not found.groups and [dropped.reason for dropped in found.dropped] == ["infra_error"] * 2
    assert len(saved) == 8 and all(t.ending == "infra_error" and said in t.error for t in saved)
    assert found.stats["infra_errors"] == 4 and found.stats["retried"] == 2 and found.stats["lost"] == 8


def test_a_comparison_that_fails_once_is_made_again() -> None:
    found, saved = collect(groups_of("flaky"), groups=1, retries=1)
    assert len(found.groups) == 1 and found.stats["retried"] == 1 and all(t.rewards["flaky"] == 1.0 for t in saved)


def test_a_function_of_one_episode_that_fails_is_counted_where_it_failed() -> None:
    _, saved = collect(groups_of("brittle"), groups=1)
    failed = {len(str(t.turns[-1].reply["content"])): t.metrics["reward_errors"] for t in saved}
    assert len(saved) == 4 and failed == {size: float(size == 4) for size in failed} and 4 in failed


def test_an_episode_that_is_spoilt_is_not_compared() -> None:
    found, saved = collect(groups_of("infra"), groups=1)
    assert not found.groups and all("its sandbox is lost" in t.error for t in saved)


def test_H18_a_worker_that_has_ended_takes_its_groups_with_it() -> None:
    env = groups_of("group")
    task = env.tasks("train")[0]
    chat, saved = chat_tokenizer(), list[Trajectory]()
    asked = 0

    def speak(prompt: str, seed: int) -> str:
        nonlocal asked
        asked += 1
        if asked == 2:  # the first has ended, and waits for the second
            env.host.close()
        return "ant"

    settings = RolloutSettings(Sampling(200), 2, retries=1, retry_wait_s=0.0, deadline_s=180, max_concurrent=1)
    sampler = Sampler(ScriptedEngine(chat, speak), chat, {env.name: env}, settings, lambda t, _: saved.append(t))
    found = asyncio.run(sampler.collect(0, [task], 0))
    assert not found.groups and [dropped.reason for dropped in found.dropped] == ["infra_error"]
    assert any("has ended since" in t.error for t in saved) and not any(t.reward for t in saved)


@pytest.mark.parametrize("rollouts", [1, 4])
def test_evaluations_compare_the_rollouts_of_a_task(rollouts: int) -> None:
    env, chat, saved = groups_of("group"), chat_tokenizer(), list[Trajectory]()
    settings = RolloutSettings(Sampling(200), 8, retries=0, deadline_s=180)
    engine = ScriptedEngine(chat, speaker())
    sampler = Sampler(engine, chat, {env.name: env}, settings, lambda t, _: saved.append(t))
    asyncio.run(sampler.evaluate(env.tasks("train")[:2], rollouts=rollouts))
    assert len(saved) == 2 * rollouts and all(t.metrics["scored_together"] == rollouts for t in saved)
    assert (max(t.rewards["briefest"] for t in saved) > 0) == (rollouts > 1)


def test_the_second_interface_compares_attempts_inside_an_episode() -> None:
    """Its finalize() sees the traces of one episode: they are one episode here, whose reward is their mean."""
    env = opened("v1", OURS / "rivals_v1.py", **CHAT, n=4)
    assert not env.scores_groups and env.reward_weights == {"total": 1.0}
    for trajectory in play(env, speaker()):
        assert trajectory.ending == "done" and len(trajectory.turns) == 4
        assert trajectory.metrics["correct"] == 0.75 and trajectory.metrics["briefest"] == 0.25
        assert trajectory.reward == pytest.approx(0.75 + 0.5 * 0.25) and trajectory.metrics["reward_spread"] == 1.5


def test_the_librarys_own_best_of_n() -> None:
    env = opened("v1", OURS / "second_v1.py", **CHAT, id="best-of-n", n=4, max_tasks=4)
    for trajectory in play(env, speaker()):
        assert trajectory.ending == "done" and len(trajectory.turns) == 4 and trajectory.metrics["pass_at_n"] == 1.0


def test_a_run_trains_on_the_rewards_of_groups(tmp_path: Path) -> None:
    args = {"python": interpreter("verifiers-v0"), "kind": "group", "success": "correct"}
    (tmp_path / "run.toml").write_text(program_run(f"verifiers:{OURS / 'group_v0.py'}", toml_value(args)))
    changed = ["--output_dir", str(tmp_path / "out"), "--max_steps", "3", "--seq_len", "256"]
    config = load_config(["@", str(tmp_path / "run.toml"), *changed])
    done = start(config, Display(quiet=True), skip_proofs=True)
    run = Run.open(done.run.path)
    episodes = [t for step in range(3) for t in run.finished(step).values()]
    assert len(episodes) == 24 and all(t.metrics["scored_together"] == 4 for t in episodes)
    assert {t.rewards["briefest"] for t in episodes} - {0.0, 1.0}, "ranks of four, as only a comparison gives them"
    assert all(t.metrics["scored_together"] == 1 for t in run.evaluation("after"))
    resumes_with_whole_groups(run, config, {"group_v0": groups_of("group")})


def resumes_with_whole_groups(run: Run, config: Any, envs: Any) -> None:
    """Killed while the last group of a step was saved: what is there of it is set aside, and the other one is kept."""
    run._tokens(2).unlink()
    last = max(run.finished(2))
    (lost,) = [t for place, t in run.finished(2).items() if place == last]
    (run._episodes(2) / f"{lost.id}.json").unlink()
    left = asyncio.run(_finished(SimpleNamespace(config=config, envs=envs, ranks=Ranks()), run, 2))  # type: ignore[arg-type]
    assert sorted(left) == sorted(run.finished(2)) and len(left) == 4 and {place[0] for place in left} == {0}
    assert len(list(run._episodes(2).with_name("aside_0002_groups").glob("*.json"))) == 3
