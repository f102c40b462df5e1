"""Environments of one file: named by path and class, found from anywhere, refused with a sentence."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import write_config

from airloop.chat.actions import parse
from airloop.commands.init import STARTER
from airloop.config import load_config, to_toml
from airloop.envs.base import load_environment
from airloop.envs.files import content_digest
from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.rollout.episode import run_episode
from airloop.runs.config_digest import digest_of
from airloop.runs.run import Run
from airloop.training import start
from airloop.warmstart import warmstart_directory
from airloop.watch.display.display import Display

PARTIAL = "from airloop.envs.base import Environment\nclass Other(Environment):\n    pass\n"
MINE = f"{STARTER / 'my_env.py'}:MyEnv"


def play(env: Any, who: str, task: Any) -> float:
    async def episode() -> float:
        async with env.open(task, 0) as session:
            opening = await session.begin()
            reply = await env.scripted(who, task, 0).reply(opening.messages, opening.tools)
            await session.act(parse(reply["content"], env.action_format)[0][0])
            return float((await session.finish()).rewards["correct"])

    return asyncio.run(episode())


def test_the_starter_pays_its_oracle_and_nobody_else() -> None:
    env = load_environment(MINE)
    splits = [{task.id for task in env.tasks(split)} for split in ("train", "eval", "test")]
    assert not set.intersection(*splits) and all(splits)
    for task in [task for split in ("train", "eval", "test") for task in env.tasks(split)]:
        assert [play(env, who, task) for who in ("oracle", "noop", "cheat")] == [1.0, 0.0, 0.0]
    assert pickle.loads(pickle.dumps(env.args)) == env.args


def test_a_path_is_relative_to_its_toml_and_saved_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "mine.py").write_text((STARTER / "my_env.py").read_text())
    file = tmp_path / "one" / "a.toml"
    file.write_text('[[orchestrator.env]]\nid = "./mine.py:MyEnv"\nargs = { demo_accuracy = 0.1 }\n')
    monkeypatch.chdir(os.sep)
    config = load_config(["@", str(file)])
    entry = config.orchestrator.env[0]
    assert entry.id == f"{tmp_path}/one/mine.py:MyEnv" and entry.title == config.task == "mine"
    (tmp_path / "saved.toml").write_text(to_toml(config))
    assert load_config(["@", str(tmp_path / "saved.toml")]) == config
    assert load_environment(entry.id, entry.args).args.demo_accuracy == 0.1  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path / "one")
    flags = ["--orchestrator.env.0.id", "mine.py:MyEnv"]
    assert load_config(flags).orchestrator.env[0].id == entry.id


@pytest.mark.parametrize(
    ("text", "kind", "problem", "fix"),
    [
        (None, ":MyEnv", "There is no file", "correct its id"),
        ("x = 1\n", ":MyEnv", "has no environment 'MyEnv'", "subclass of airloop.envs.base.Environment"),
        ("x = 1 +\n", ":MyEnv", "broken.py:1 cannot be imported: SyntaxError", "mend the file"),
        ("\nimport no_such_module\n", ":MyEnv", "broken.py:2 cannot be imported: ModuleNotFoundError", "mend"),
        (
            PARTIAL,
            "",
            "names no class",
            ":Other",
        ),
        (PARTIAL, ":Other", "it lacks", "define"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str | None, kind: str, problem: str, fix: str) -> None:
    if text is not None:
        (tmp_path / "broken.py").write_text(text)
    with pytest.raises(AirError) as refused:
        load_environment(f"{tmp_path / 'broken.py'}{kind}")
    assert problem in refused.value.problem and fix in refused.value.fix


def test_tasks_of_a_file_are_shown(air: Any) -> None:
    code, text, _ = air("tasks", "show", MINE, "--play", "oracle", "--n", 1)
    assert code == 0 and "assistant" in text
    code, text, _ = air("tasks", "list", MINE)
    assert code == 0 and "60 train, 20 eval, 20 test" in text


def test_another_text_is_another_environment_to_what_is_reused(tmp_path: Path) -> None:
    """A supervised start made with the old demonstrations, and an unfinished run, are not those of the new file."""
    mine = tmp_path / "mine.py"
    mine.write_text((STARTER / "my_env.py").read_text())
    flags = ["--orchestrator.env.0.id", f"{mine}:MyEnv", "--output_dir", str(tmp_path / "out")]
    config = load_config([*flags, "--warmstart.steps", "2"])
    before = warmstart_directory(config), digest_of(config)
    assert (warmstart_directory(config), digest_of(config)) == before
    mine.write_text(mine.read_text() + "\n# another rule\n")
    after = warmstart_directory(config), digest_of(config)
    assert before[0] != after[0] and before[1] != after[1]


def test_a_file_that_came_with_a_run_is_never_executed(tmp_path: Path, air: Any) -> None:
    """Somebody else's run: its config names a file that lies in it. Reading the run must not run it."""
    run = Run.create(load_config(["--output_dir", str(tmp_path)]), "tune")
    run.close()
    for name in ("before", "after"):
        (run.path / "evaluations" / name).mkdir(parents=True)
        (run.path / "evaluations" / name / "a.json").write_text("{}")
    mark = tmp_path / "harmed"
    (run.path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    text = (run.path / "config.toml").read_text()
    (run.path / "config.toml").write_text(text.replace('id = "tune"', 'id = "./evil.py:Evil"'))
    for words in (("compare", run.path), ("train", "--resume", run.path), ("doctor", "@", run.path / "config.toml")):
        code, printed, errors = air(*words)
        assert code != 0 and "a run's files are never executed" in printed + errors, (words, printed, errors)
    air("log", "show", run.path)
    air("eval", "--agent", f"run:{run.path}")
    assert not mark.exists()


# All that an environment has to have: tasks, sessions, and a score.
LEAST = """\
from airloop.envs.base import Environment, Opening, Session
from airloop.types import Message, Observation, Score, Task

class Echo(Session):
    def __init__(self, task):
        self.word, self.said = task.id, ""

    async def begin(self):
        return Opening((Message(role="user", content=self.word),))

    async def act(self, action):
        self.said = action.text
        return Observation("", done=True)

    async def finish(self):
        return Score({"share": self.said.count(self.word) / max(1, len(self.said))})

class Least(Environment):
    def tasks(self, split):
        return [Task(self.name, word, split) for word in {"train": "abcdefgh", "eval": "ijkl", "test": "mnop"}[split]]

    def open(self, task, seed):
        return Echo(task)
"""


@pytest.fixture
def least(tmp_path: Path) -> str:
    (tmp_path / "least.py").write_text(LEAST)
    return f"{tmp_path / 'least.py'}:Least"


def test_tasks_sessions_and_a_score_are_an_environment(least: str, air: Any) -> None:
    env = load_environment(least)
    task = env.tasks("train")[0]
    played = asyncio.run(run_episode(env, task, Script("ab"), id="1", seed=0))
    assert (env.name, env.max_turns, played.ending, played.reward) == ("least", 1, "done", 0.5)
    code, text, _ = air("tasks", "show", least, "--n", 1)
    assert code == 0 and "=== a (train" in text


def test_scripts_are_asked_for_by_those_who_need_them(least: str, air: Any) -> None:
    code, text, errors = air("tasks", "audit", least)
    assert code != 0 and "names no reward_weights" in text + errors and "--reward correct=1" in text + errors
    code, text, _ = air("tasks", "audit", least, "--reward", "share=1")
    assert code == 2 and "no script 'oracle', 'noop', 'cheat' for the task a" in text
    assert "define Least.scripted(name, task, seed)" in text and "no script 'demo': a supervised start" in text
    code, text, errors = air("tasks", "show", least, "--play", "oracle")
    assert code != 0 and "has no scripted agent 'oracle'" in text + errors


@pytest.mark.slow
def test_the_least_environment_is_trained_and_its_file_is_of_the_run(least: str, tmp_path: Path) -> None:
    flags = ["--orchestrator.env.0.id", least, "--orchestrator.env.0.args", "{}", "--max_steps", "1"]
    config = load_config(["@", str(write_config(tmp_path)), *flags])
    run = start(config, Display(quiet=True), skip_proofs=True).run
    assert run.status()["code"] == {least: content_digest(least)}
    assert run.metrics("train")[0]["components"].keys() == {"share"}
    assert start(config, Display(quiet=True), skip_proofs=True, resume=run.path).run.path == run.path
