"""Mistakes in an environment of somebody's own: a sentence that names the method, wherever it is met first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.probe_cases import ARITH, case_of

from airloop.doctor.examine import examine
from airloop.envs.base import Environment, load_environment
from airloop.envs.contract import WrongEnvironment, list_tasks
from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.eval.tasks import show_tasks
from airloop.rollout.episode import EpisodeDefect, run_episode
from airloop.types import Trajectory

TEXT = """
import numpy as np
from airloop.envs.base import Environment, Opening, Session
from airloop.types import Message, Observation, Score, Task

class S(Session):
    async def begin(self):
        return Opening((Message(role="user", content="1+1="),))
    async def act(self, action):
        self.said = action.text
        return Observation("ok", done=True)
    async def finish(self):
        return Score({"correct": 1.0}, {"correct": 1.0})

class MyEnv(Environment):
    success = "correct"
    def tasks(self, split):
        return [Task(self.name, f"{split}-{i}", split, {"n": i}) for i in range(8)]
    def open(self, task, seed):
        return S()
"""
TASKS = '[Task(self.name, f"{split}-{i}", split, {"n": i}) for i in range(8)]'
OPENED = 'return Opening((Message(role="user", content="1+1="),))'
ACTED = 'return Observation("ok", done=True)'
SCORED = 'return Score({"correct": 1.0}, {"correct": 1.0})'
WRONG = [
    ("    async def begin", "    def begin", "begin() of S gave an Opening without being async"),
    (OPENED, 'return "1+1="', "begin() of S gave a str, where Opening is awaited"),
    (OPENED, 'return Opening(("1+1=",))', "messages are a tuple with a str"),
    (ACTED, 'return "ok"', "act() of S gave a str, where Observation is awaited"),
    (ACTED, "return None", "act() of S gave None"),
    ("    async def act", "    def act", "act() of S gave an Observation without being async"),
    (ACTED, 'return Observation("ok", rewards={"step": "much"}, done=True)', "the reward 'step' is a str"),
    (SCORED, "return 1.0", "finish() of S gave a float, where Score is awaited"),
    (SCORED, "return None", "finish() of S gave None"),
    (SCORED, 'return Score({"correct": None})', "the reward 'correct' is None, not a number"),
    (SCORED, "return Score(1.0)", "finish() of S gave a float for its rewards"),
    ("return S()", "return None", "open() of MyEnv gave None, not a Session"),
    ("    def open", "    async def open", "open() of MyEnv gave a coroutine"),
]


def environment(folder: Path, old: str = "", new: str = "") -> str:
    assert old in TEXT
    (folder / "mine.py").write_text(TEXT.replace(old, new, 1) if old else TEXT)
    return f"{folder / 'mine.py'}:MyEnv"


def play(named: str) -> Trajectory:
    env: Any = load_environment(named)
    return asyncio.run(run_episode(env, list_tasks(env, "train")[0], Script("2"), id="x", seed=0))


@pytest.mark.parametrize(("old", "new", "told"), WRONG, ids=[told for _, _, told in WRONG])
def test_what_is_no_opening_observation_or_score_is_a_sentence(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(EpisodeDefect) as defect:
        play(environment(tmp_path, old, new))
    assert told in defect.value.problem and defect.value.fix.startswith(("write", "leave"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("None", "gave None"),
        ('[{"id": "1"}]', "gave a list with a dict"),
        ("iter([1])", "gave a list with an int"),
        ("[None]", "with None"),
    ],
)
def test_what_are_no_tasks_is_a_sentence(tmp_path: Path, given: str, told: str) -> None:
    named = environment(tmp_path, TASKS, given)
    with pytest.raises(WrongEnvironment, match="not a list of tasks") as wrong:
        list_tasks(load_environment(named), "train")
    assert told in wrong.value.problem
    with pytest.raises(AirError, match="not a list of tasks"):
        show_tasks(named, "train", 1)


def test_tasks_that_come_one_by_one_are_a_list_of_them(tmp_path: Path) -> None:
    assert len(list_tasks(load_environment(environment(tmp_path, TASKS, f"iter({TASKS})")), "train")) == 8


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """They went to the file of the episode as they were, and ended the run there."""
    score = 'return Score({"correct": np.float32(1)}, {"n": np.int64(3), "b": True})'
    played = play(environment(tmp_path, SCORED, score))
    assert played.rewards == {"correct": 1.0} and played.metrics["n"] == 3.0 and played.metrics["b"] == 1.0
    assert not any(isinstance(value, np.generic) for value in (*played.rewards.values(), *played.metrics.values()))


@pytest.mark.parametrize(("old", "new", "told"), WRONG[:2])
def test_the_doctor_says_the_same_and_not_that_it_has_failed(tmp_path: Path, old: str, new: str, told: str) -> None:
    named = environment(tmp_path, old, new)
    with case_of({**ARITH, "orchestrator.env.0.id": named}) as case:
        seen = [finding for result in examine(case, ["fast"]) for finding in result.findings]
    said = [finding.seen for finding in seen if finding.verdict == "fail"]
    assert said and told in said[0] and not any("itself failed" in one for one in said), said


def test_a_file_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    named = environment(tmp_path, OPENED, "return nothing_of_that_name")
    with case_of({**ARITH, "orchestrator.env.0.id": named}) as case:
        seen = [finding for result in examine(case, ["fast"]) for finding in result.findings]
    wrong = next(finding for finding in seen if finding.verdict == "fail")
    assert wrong.seen.startswith(f"{tmp_path}/mine.py:8: NameError"), wrong
    assert wrong.fix == "mend the file"


@pytest.mark.parametrize(("id", "told"), [('f"{split}-{i}"', 0), ('f"{i}"', 1)])
def test_held_out_tasks_that_are_trained_on_are_said(tmp_path: Path, id: str, told: int) -> None:
    named = environment(tmp_path, 'f"{split}-{i}"', id)
    with case_of({**ARITH, "orchestrator.env.0.id": named}) as case:
        seen = [finding.seen for result in examine(case, ["fast"], ["D-tasks"]) for finding in result.findings]
    assert sum("8 of 8 test tasks of mine are train tasks, too (the first: '0')" in one for one in seen) == told, seen


@pytest.mark.parametrize("name", ["arith", "gsm8k", "gsm8k-calculator", "mlgym", "musique", "soup", "tune"])
def test_a_misspelt_split_is_refused_by_every_environment(name: str) -> None:
    """mlgym made tasks of whatever name it was asked for, arith drew them, and others said that there were none."""
    env = load_environment(name)
    assert {"train", "eval", "test"} <= set(env.splits)
    for split in env.splits:
        assert len(list_tasks(env, split)) == env.count(split) > 0
    with pytest.raises(AirError) as refused:
        list_tasks(env, "tset")
    assert "there is no such split" in refused.value.problem and "did you mean 'test'?" in refused.value.fix


def test_an_evaluation_on_a_misspelt_split_is_refused(air: Any, tmp_path: Path) -> None:
    words = ["--agent", "scripted:oracle", "--split", "tset", "--n", "2", "--output_dir", tmp_path]
    free = ["--orchestrator.env.0.args", "{ split_by = 'none' }"]
    code, _, problem = air("eval", "arith", *words, *free)
    assert code == 1 and "did you mean 'test'?" in problem


def test_an_environment_names_splits_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TEXT + '    splits = ("train", "test", "hard")\n')
    env = load_environment(f"{tmp_path / 'own.py'}:MyEnv")
    assert len(list_tasks(env, "hard")) == 8
    with pytest.raises(AirError, match="no such split"):
        list_tasks(env, "eval")


def test_a_hook_by_its_old_name_is_told() -> None:
    with pytest.raises(AirError, match="check_world is called check_sandbox now"):
        type("Old", (Environment,), {"check_world": None})
    with pytest.raises(AirError, match="check_world is called check_sandbox now"):  # by a part that several share
        type("Old", (type("Mixin", (), {"check_world": None}), Environment), {})
