"""What people get wrong in their first hour: each was a traceback, a wrong sentence, or a healthy run refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.probe_cases import ARITH, case_of

from airloop.config import load_config
from airloop.config.mistakes import Refused
from airloop.doctor.probe import _Sampling
from airloop.envs.base import load_environment
from airloop.errors import AirError


def test_a_task_that_comes_again_within_a_second_is_another_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few tasks the probe's rounds gave two episodes one name, and the trainer's log-probs of both were mixed: F1
    refused a healthy run."""
    monkeypatch.setattr("airloop.rollout.schedule.time.strftime", lambda *_: "20261118T100000")
    with case_of(ARITH) as case:
        sampling = _Sampling(case.parts, 8)
        for _ in range(2):  # the same tasks at the same places
            case.wait(sampling._collect(0))
        ids = [trajectory.id for trajectory in sampling.ended]
    assert len(ids) >= 8 and len({*ids}) == len(ids)


@pytest.mark.parametrize("words", [("train", "."), ("train", "@", "."), ("plan", "@", "."), ("doctor", "@", "..")])
def test_a_folder_in_the_place_of_a_config_is_a_sentence(air: Any, words: tuple[str, ...]) -> None:
    code, said, told = air(*words)
    assert code in (1, 2) and "Traceback" not in told + said
    assert "a folder, not a TOML file" in told + said or "nor a file" in told + said


@pytest.mark.parametrize("flags", [["--seed", str(2**64)], ["--max_steps", "9" * 20]])
def test_numbers_that_nothing_could_hold_are_refused(flags: list[str]) -> None:
    with pytest.raises(Refused, match="less than or equal"):
        load_config(["arith", *flags])


def test_rows_that_excel_has_saved_are_read(air: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    text = "".join(json.dumps({"question": f"{i}+4=", "answer": str(i + 4)}) + "\r\n" for i in range(40))
    rows.write_bytes(b"\xef\xbb\xbf" + text.encode())
    functions = tmp_path / "rewards.py"
    functions.write_text("def correct(completions, answer, **more):\n    return [1.0] * len(completions)\n")
    given = [f"dataset={rows}", "prompt=question", f"rewards={functions}:correct"]
    code, said, told = air("tasks", "show", "prompts", "--n", "1", *[word for one in given for word in ("--arg", one)])
    assert code == 0 and "+4=" in said, told


def test_tasks_are_shown_as_a_tiny_model_sees_them(air: Any) -> None:
    code, said, told = air("tasks", "show", "arith", "--n", "1", "--model", "tiny:llama")
    assert code == 0 and "<|im_start|>" in said, told


EXITS = ["import sys\nsys.exit(3)\n", "import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n"]


@pytest.mark.parametrize("body", EXITS)
def test_a_file_that_exits_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "mine.py").write_text(body)
    with pytest.raises(AirError, match=r"mine\.py:2 cannot be imported: SystemExit"):
        load_environment(f"{tmp_path}/mine.py:MyEnv")


def test_a_reward_function_that_exits_is_named(air: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "3+4=", "answer": "7"}\n' * 20)
    (tmp_path / "rewards.py").write_text("import sys\ndef correct(completions, **more):\n    sys.exit(3)\n")
    args = f'{{ dataset = "{tmp_path}/rows.jsonl", prompt = "question", rewards = ["{tmp_path}/rewards.py:correct"] }}'
    text = f'[model]\nname = "tiny:llama"\n[[orchestrator.env]]\nid = "prompts"\nargs = {args}\n'
    (tmp_path / "c.toml").write_text(text)
    code, said, told = air("train", "@", tmp_path / "c.toml", "--skip-proofs")
    assert code == 1 and "The reward function correct raised SystemExit: 3" in said + told
    assert "rewards.py:3" in said + told


def test_an_unknown_script_leaves_no_evaluation_behind(air: Any, tmp_path: Path) -> None:
    code, _, told = air("eval", "arith", "--agent", "scripted:nope", "--n", "2", "--output_dir", tmp_path / "outputs")
    assert code == 1 and "nope" in told
    assert not list(tmp_path.glob("outputs/eval-*"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def solve(task, client):\n    return 1.0\n", "asked nothing"),
        ("def solve(task, client):\n    return task['gold']\n", "asked nothing"),
        ("import nothing_of_that_name\ndef solve(task, client):\n    return 1.0\n", "nothing_of_that_name"),
    ],
)
def test_a_program_that_asks_nothing_is_its_authors_to_mend(air: Any, tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "agent.py").write_text(body)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1="}\n' * 20)
    words = ["tasks", "show", f"{tmp_path}/agent.py:solve", "--n", "1", "--arg", f"tasks={tmp_path}/tasks.jsonl"]
    code, said, error = air(*words)
    assert code == 1 and told in error and "Traceback" not in error + said
    assert error.startswith("air: ") and "the agent's" in error
