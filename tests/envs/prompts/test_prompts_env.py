"""The environment `prompts`: rows and their splits, scripts, commands, and runs that learn."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.envs.base import load_environment
from airloop.envs.files import content_digest
from airloop.errors import AirError
from airloop.runs.run import digest_of
from airloop.training import start
from airloop.warmstart import warmstart_directory
from airloop.watch.display.display import Display

PAGE = Path(__file__).parents[3] / "docs/environments.md"
SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]


def write_rows(path: Path, rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The folder that the page describes: its TOML, its functions, and rows of its form."""
    section = PAGE.read_text(encoding="utf-8").split("\n## prompts\n")[1].split("\n## ")[0]
    toml, code = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("toml", "python"))
    assert toml and code and len(toml[1].splitlines()) == 10
    (tmp_path / "run.toml").write_text(toml[1])
    (tmp_path / "rewards.py").write_text(code[1])
    (row,) = re.findall(r"`(\{\"question\".*?\})`", section)
    assert json.loads(row) in SUMS
    write_rows(tmp_path / "rows.jsonl", SUMS)
    return tmp_path


def env_of(folder: Path, rows: Any = SUMS, **args: Any) -> Any:
    (folder / "rewards.py").write_text("def correct(completions, **columns): return [0.0]\n")
    dataset = str(write_rows(folder / "rows.jsonl", rows))
    given = {"dataset": dataset, "prompt": "question", "rewards": f"{folder}/rewards.py:correct", **args}
    return load_environment("prompts", given)


def ids(env: Any, split: str) -> set[str]:
    return {task.id for task in env.tasks(split)}


def test_rows_stay_in_their_split_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    env = env_of(tmp_path)
    whole = {split: ids(env, split) for split in ("train", "eval", "test")}
    part = env_of(tmp_path, SUMS[20:80])
    assert all(found and ids(part, split) <= found for split, found in whole.items())
    assert sum(env.count(split) for split in whole) == sum(map(len, whole.values())) == 100


def test_no_prompt_is_in_two_splits(tmp_path: Path) -> None:
    """Rows that differ in other columns go together; the same row counts once, and test rows are not trained on."""
    twice = [{**row, "source": source} for row in SUMS for source in ("a", "b", "b")]
    env = env_of(tmp_path, twice)
    prompts = {split: [task.payload["prompt"] for task in env.tasks(split)] for split in ("train", "eval", "test")}
    assert sum(map(len, prompts.values())) == 200
    assert not set(prompts["train"]) & {*prompts["eval"], *prompts["test"]}
    test = write_rows(tmp_path / "test.jsonl", SUMS[:10])
    env = env_of(tmp_path, test_dataset=str(test))
    assert [task.payload["prompt"] for task in env.tasks("test")] == [row["question"] for row in SUMS[:10]]
    assert not ids(env, "test") & (ids(env, "train") | ids(env, "eval")) and env.count("train") > 75


def test_a_few_rows_are_split_too(tmp_path: Path) -> None:
    env = env_of(tmp_path, SUMS[:3])
    assert [env.count(split) for split in ("train", "eval", "test")] == [1, 1, 1]
    with pytest.raises(AirError, match="No row is left to train on"):
        env_of(tmp_path, SUMS[:4], test_dataset=f"{tmp_path}/rows.jsonl").tasks("train")


@pytest.mark.parametrize(
    ("row", "args", "problem", "fix"),
    [
        ({"question": "a"}, {"prompt": "questoin"}, "no column 'questoin'", "did you mean 'question'?"),
        ({"question": 3}, {}, "'question' of row 4 of rows.jsonl is a int", "a text, or a list of messages"),
        ({"question": ""}, {}, "is empty", "a text"),
        ({"question": [{"role": "user"}]}, {}, "a message without text", '"role": "user"'),
        ({"question": [{"role": "assistant", "content": "a"}]}, {}, "ends with the assistant's", "to be answered"),
        ({"question": [{"role": "user", "content": "a", "tool_calls": [1]}]}, {}, "with tool_calls", "leave out"),
        ({"question": "a", "completions": 1}, {}, "'completions', a name that is taken", "rename"),
        ({"question": "a"}, {"answer": "anwser"}, "answer = 'anwser' is no column", "did you mean 'answer'?"),
        ({"question": "a"}, {"success": "corect"}, "success = 'corect'", "did you mean 'correct'?"),
        ({"question": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}, {"system": "c"},
         "has a system message", "leave one out"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_rows_is_said(tmp_path: Path, row: Any, args: Any, problem: str, fix: str) -> None:
    with pytest.raises(AirError) as refused:
        env_of(tmp_path, [*SUMS[:3], row], **args).tasks("train")
    assert problem in refused.value.problem and fix in refused.value.fix


def test_no_file_no_rows(tmp_path: Path) -> None:
    with pytest.raises(AirError, match="There is no data at"):
        env_of(tmp_path, dataset=f"{tmp_path}/none.jsonl").tasks("train")
    with pytest.raises(AirError, match="has no rows"):
        env_of(tmp_path, []).tasks("train")


def test_a_directory_without_a_test_split_is_split_by_hash(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train.jsonl", SUMS)
    env = env_of(tmp_path, dataset=f"{tmp_path}/data")
    assert ids(env, "test") == ids(env_of(tmp_path), "test")


def test_paths_are_relative_to_the_toml_and_files_belong_to_the_run(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(os.sep)
    words = ["@", str(shown / "run.toml"), "--warmstart.steps", "2"]
    config = load_config(words)
    assert config.orchestrator.env[0].args["dataset"] == f"{shown}/rows.jsonl"
    assert config.own_code == [f"{shown}/rewards.py:correct", f"{shown}/rewards.py:number"]
    before = digest_of(config), warmstart_directory(config)
    (shown / "rewards.py").write_text((shown / "rewards.py").read_text() + "\n# another rule\n")
    assert digest_of(config) != before[0] and warmstart_directory(config) != before[1]


def test_commands_show_play_and_audit_it(shown: Path, air: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown)
    args = ("--arg", "dataset=rows.jsonl", "--arg", "prompt=question")
    rewards = ("--arg", 'rewards=["./rewards.py:correct", "./rewards.py:number"]')
    code, text, _ = air("tasks", "list", "prompts")
    assert code == 0 and "made of its args: dataset, rewards" in text and "args.success" in text
    code, text, _ = air("tasks", "show", "prompts", *args, *rewards, "--n", 1)
    assert code == 0 and "0+0=" in text
    code, text, _ = air("tasks", "show", "prompts", *args, *rewards, "--arg", "answer=answer", "--play", "oracle")
    assert code == 0 and "success 1, reward 2.000 (correct 1, number 1)" in text
    code, text, _ = air("tasks", "audit", "prompts", *args, *rewards)
    assert code == 2 and 'name it in args: answer = "…", one of question, answer' in text
    shaped = ("--arg", "answer=answer", "--arg", "shaping=number")
    code, text, _ = air(
        "tasks", "audit", "prompts", *args, *rewards, *shaped, "--reward", "correct=1", "--reward", "number=0.1"
    )
    assert code == 0 and "comparisons hold" in text
    code, _, problem = air("tasks", "show", "prompts", *args, "--arg", "rewards=./rewards.py:corect")
    assert code != 0 and "did you mean" in problem


def test_an_audit_leaves_out_what_only_a_model_can_earn(shown: Path, air: Any) -> None:
    (shown / "ids.py").write_text("def few(completion_ids): return [1 / (1 + len(ids)) for ids in completion_ids]\n")
    args = ("--arg", f"dataset={shown}/rows.jsonl", "--arg", "prompt=question", "--arg", "answer=answer")
    both = ("--arg", f'rewards=["{shown}/rewards.py:correct", "{shown}/ids.py:few"]')
    code, text, _ = air("tasks", "audit", "prompts", *args, *both)
    assert code == 0 and "few can only be earned by a model: not audited" in text
    code, text, problem = air("tasks", "audit", "prompts", *args, "--arg", f"rewards={shown}/ids.py:few")
    assert code != 0 and "no script shows by whom" in text + problem


@pytest.mark.slow
def test_the_pages_ten_lines_are_a_run(shown: Path, air: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    words = ("@", shown / "run.toml", "--output_dir", shown / "outputs")
    code, text, problem = air("train", *words, "--max_steps", 2, "--skip-proofs")
    assert code == 0, text + problem
    (run,) = (shown / "outputs").glob("exp*-prompts-*")
    assert json.loads((run / "status.json").read_text())["code"] == {
        f"{shown}/rewards.py:{name}": content_digest(f"{shown}/rewards.py") for name in ("correct", "number")
    }
    code, text, problem = air("eval", *words, "--agent", "scripted:oracle")
    assert code == 0 and re.search(r"correct +1\.000", text), text + problem
    code, text, problem = air("doctor", *words, "--orchestrator.env.0.args.prompt", "questoin")
    assert code != 0 and "did you mean 'question'?" in text


LETTERS = (
    "def letters(completions, **columns): return [sum(c.islower() for c in s) / max(1, len(s)) for s in completions]\n"
)
LEARNS = """\
max_steps = 12
seq_len = 32
[model]
name = "tiny:llama"
[trainer.model]
train = "full"
[trainer.optim]
lr = 1e-2
[orchestrator]
batch_size = 64
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 4
[[orchestrator.env]]
id = "prompts"
args = { dataset = "rows.jsonl", prompt = "question", rewards = "./rewards.py:letters" }
"""


@pytest.mark.long
@pytest.mark.slow
def test_success_rises(tmp_path: Path) -> None:
    """The share of letters in what is said, from that of random bytes."""
    (tmp_path / "rewards.py").write_text(LETTERS)
    (tmp_path / "run.toml").write_text(LEARNS)
    write_rows(tmp_path / "rows.jsonl", SUMS)
    config = load_config(["@", str(tmp_path / "run.toml"), "--output_dir", str(tmp_path / "outputs")])
    run = start(config, Display(quiet=True), skip_proofs=True).run
    shares = [line["success"] for line in run.metrics("train")]
    assert shares[0] < 0.3 and min(shares[-3:]) > 0.8
