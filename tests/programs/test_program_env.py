"""The environment `program`: what its id and arguments mean, and a run of it that learns."""

from __future__ import annotations

import asyncio
import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.doctor.case import Case
from airloop.doctor.examine import examine
from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.programs import env as programs
from airloop.programs.env import ProgramEnv
from airloop.rollout.program import Address
from airloop.runs.run import Run
from airloop.training import start
from airloop.types import Message
from airloop.watch.display.display import Display

AGENT = '''
def solve(task, client):
    """Half of what is said should be small letters, and so should the other half."""
    said = [{"role": "user", "content": f"say {task['word']}"}]
    text = client.chat.completions.create(model="m", messages=said, max_tokens=8).choices[0].message.content or " "
    return sum(letter.islower() for letter in text) / max(len(text), 1)

def not_scored(task):
    return {"a": 1, "b": 2}

def shout(task, messages):
    return task["word"].upper()

def measured(task):
    return {"score": 1, "turns": 2}

class Env:
    pass
'''
CONFIG = """
max_steps = 12
seq_len = 128
output_dir = "out"
[model]
name = "tiny:llama"
[trainer.model]
train = "full"
[trainer.optim]
lr = 5e-3
[orchestrator]
batch_size = 32
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 8
[orchestrator.eval]
num_examples = 8
[[orchestrator.env]]
id = "./agent.py:solve"
args = { tasks = "tasks.jsonl" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [{"word": f"w{i}"} for i in range(60)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def env_of(folder: Path, function: str = "solve", **args: Any) -> ProgramEnv:
    made = load_environment(f"{folder / 'agent.py'}:{function}", {"tasks": str(folder / "tasks.jsonl"), **args})
    assert isinstance(made, ProgramEnv)
    return made


def test_a_function_of_a_file_is_an_agent(folder: Path) -> None:
    env = env_of(folder)
    assert env.name == "agent" and env.success == "score" and env.max_turns == 64
    same = load_environment(
        "program", {"tasks": str(folder / "tasks.jsonl"), "function": f"{folder / 'agent.py'}:solve"}
    )
    assert [t.id for t in same.tasks("train")] == [t.id for t in env.tasks("train")]


def test_rows_are_in_one_split_each_and_stay_there(folder: Path) -> None:
    env = env_of(folder)
    splits = {split: {task.id for task in env.tasks(split)} for split in ("train", "eval", "test")}
    assert sum(map(len, splits.values())) == 60 and all(splits.values())
    (folder / "tasks.jsonl").write_text((folder / "tasks.jsonl").read_text() + '\n{"word": "new"}')
    again = env_of(folder)
    assert all(splits[split] <= {task.id for task in again.tasks(split)} for split in splits)


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        ("Env", {}, "no environment"),
        ("solv", {}, "no environment 'solv'"),
        ("solve", {"train": "some"}, '"all", "main" or "system:TEXT"'),
        ("solve", {"train": "system:"}, "names no text"),
        ("solve", {"max_requests": 0}, "max_requests"),
        ("solve", {"tasks": "absent.jsonl"}, "absent.jsonl"),
    ],
)
def test_what_cannot_be_is_told(folder: Path, function: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(AirError, match=said):
        env_of(folder, function, **args).tasks("train")


def test_a_component_may_be_called_reward_and_a_metric_beside_it_may_not(folder: Path) -> None:
    with (folder / "agent.py").open("a") as file:
        file.write("\ndef named(task):\n    return {'reward': 0.5, 'score': 1.0}\n")
    env = env_of(folder, "named")
    try:
        with pytest.raises(AirError, match="a score called 'reward'"):
            asyncio.run(env.play(env.tasks("train")[0], 0, Address("http://127.0.0.1:9/v1", "key")))
        env.weigh({"reward": 1.0})
        assert asyncio.run(env.play(env.tasks("train")[0], 0, Address("http://127.0.0.1:9/v1", "key"))).rewards == {
            "reward": 0.5
        }
    finally:
        env.abandon()


def test_a_score_may_not_have_the_name_of_a_metric(folder: Path) -> None:
    env = env_of(folder, "measured")
    try:
        with pytest.raises(AirError, match="a score called 'turns'"):
            asyncio.run(env.play(env.tasks("train")[0], 0, Address("http://127.0.0.1:9/v1", "key")))
    finally:
        env.abandon()


def test_without_a_program_it_is_told_how_to_name_one(folder: Path) -> None:
    with pytest.raises(AirError, match="which program"):
        load_environment("program", {"tasks": str(folder / "tasks.jsonl")})


def test_what_is_trained_is_chosen_by_how_a_conversation_opens(folder: Path) -> None:
    def said(system: str) -> list[Message]:
        return [Message(role="system", content=system), Message(role="user", content="x")]

    chief, worker = said("You plan."), said("You are a worker.")
    assert env_of(folder).trains(worker, chief)
    assert env_of(folder, train="main").trains(chief, chief) and not env_of(folder, train="main").trains(worker, chief)
    by_text = env_of(folder, train="system:worker")
    assert by_text.trains(worker, chief) and not by_text.trains(chief, chief)


def test_paths_are_relative_to_the_toml_and_the_file_is_part_of_the_run(folder: Path, monkeypatch: Any) -> None:
    from airloop.runs.config_digest import digest_of

    monkeypatch.chdir(folder.parent)
    config = load_config(["@", str(folder / "run.toml")])
    assert config.orchestrator.env[0].id == f"{folder / 'agent.py'}:solve"
    assert config.orchestrator.env[0].args["tasks"] == str(folder / "tasks.jsonl")
    before = digest_of(config)
    (folder / "agent.py").write_text(AGENT + "\n# other code\n")
    assert digest_of(load_config(["@", str(folder / "run.toml")])) != before


def test_rows_are_as_json_has_them_also_dates_of_parquet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"row": i, "day": date(2026, 1, 1 + i), "at": {"noon": datetime(2026, 1, 1, 12)}} for i in range(20)]
    monkeypatch.setattr(programs, "read_with_test", lambda *named: (rows, []))
    env = load_environment(f"{folder}/agent.py:solve", {"tasks": str(folder / "tasks.jsonl")})
    found = {task.payload["row"]: task.payload for split in ("train", "eval", "test") for task in env.tasks(split)}
    assert found[3] == {"row": 3, "day": "2026-01-04", "at": {"noon": "2026-01-01 12:00:00"}} and len(found) == 20


@pytest.mark.long
def test_an_agent_of_ones_own_learns(folder: Path) -> None:
    """Success is of held-out rows; the doctor has looked on before."""
    done = start(load_config(["@", str(folder / "run.toml"), "--output_dir", str(folder / "out")]), Display(quiet=True))
    lines = done.run.metrics("train")
    first, last = ([s for m in part for s in m["successes"]] for part in (lines[:3], lines[-3:]))
    assert sum(last) / len(last) > sum(first) / len(first) + 0.2
    played = Run.open(done.run.path).finished(11)
    assert len(played) == 32 and all(t.branches and t.metrics["requests"] == 1 for t in played.values())


def test_the_doctor_names_the_programs_own_fault_before_the_rewards(folder: Path) -> None:
    """E1 would blame tasks and rewards."""
    (folder / "agent.py").write_text(AGENT.replace("return sum(", "return task['absent'] + sum("))
    config = load_config(["@", str(folder / "run.toml"), "--output_dir", str(folder / "out")])
    with Case(config) as case:
        (result,) = examine(case, ("probe",), ["rewards_differ"])
    (found,) = result.findings
    assert found.verdict == "fail" and "KeyError: 'absent'" in found.seen and "program" in found.fix


def test_rows_that_share_an_id_and_rows_that_are_all_held_out_are_refused(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text('{"id": 1, "word": "a"}\n{"id": 1, "word": "b"}\n{"id": 2, "word": "c"}')
    with pytest.raises(AirError, match="several have the id '1'"):
        env_of(folder).tasks("train")
    with pytest.raises(AirError, match="No row is left"):
        env_of(folder, test_tasks=str(folder / "tasks.jsonl")).tasks("train")
