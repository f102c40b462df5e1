"""Paths in a TOML are relative to that TOML, those on the command line to the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from airloop.config import load_config, to_toml
from airloop.envs.base import load_environment
from airloop.errors import AirError

ROW = '{"question": "What is 2 + 3?", "answer": "5 #### 5"}\n'
ENV = """\
from typing import Annotated
from airloop.envs.base import EnvArgs, Environment
from airloop.envs.paths import Anchored, existing
class Args(EnvArgs):
    table: Annotated[str, Anchored(existing)] = ""
    inside: str = ""
class Env(Environment[Args]):
    def tasks(self, split): return []
    def open(self, task, seed): raise NotImplementedError
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """That of the TOML, and the working directory."""
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        (folder / "rows.jsonl").write_text(ROW)
    (there / "env.py").write_text(ENV)
    (there / "table.csv").write_text("a,b\n")
    monkeypatch.chdir(here)
    return there, here


def args_of(there: Path, env: str, *flags: str) -> dict[str, object]:
    (there / "run.toml").write_text(f"[[orchestrator.env]]\n{env}\n")
    return load_config(["@", str(there / "run.toml"), *flags]).orchestrator.env[0].args


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("rows.jsonl", "THERE/rows.jsonl"),
        ("./rows.jsonl,main,train[:5]", "THERE/rows.jsonl,main,train[:5]"),
        ("openai/gsm8k,main", "openai/gsm8k,main"),
        ("generated", "generated"),
        ("not_there.jsonl", "THERE/not_there.jsonl"),
    ],
)
def test_a_data_set_of_a_toml_lies_beside_it(folders: tuple[Path, Path], written: str, read: str) -> None:
    there, _ = folders
    (there / "generated").mkdir()
    args = args_of(there, f'id = "gsm8k"\nargs = {{ dataset = "{written}" }}')
    assert args == {"dataset": read.replace("THERE", str(there))}


def test_one_of_a_flag_lies_in_the_working_directory(folders: tuple[Path, Path]) -> None:
    there, here = folders
    env = 'id = "gsm8k"\nargs = { dataset = "rows.jsonl" }'
    args = args_of(there, env, "--orchestrator.env.0.args.test_dataset", "rows.jsonl", "--seed", "1")
    assert args == {"dataset": f"{there}/rows.jsonl", "test_dataset": f"{here}/rows.jsonl"}


def test_every_part_of_several_data_sets_is_looked_for(folders: tuple[Path, Path]) -> None:
    there, _ = folders
    args = args_of(there, 'id = "musique"\nargs = { datasets = "rows.jsonl,,train; org/set | generated,,test" }')
    assert args == {"datasets": f"{there}/rows.jsonl,,train; org/set | generated,,test"}


def test_an_environment_of_ones_own_marks_its_paths(folders: tuple[Path, Path]) -> None:
    there, _ = folders
    args = args_of(there, 'id = "./env.py:Env"\nargs = { table = "table.csv", inside = "table.csv" }')
    assert args == {"table": f"{there}/table.csv", "inside": "table.csv"}


def test_the_saved_config_means_the_same_elsewhere(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _ = folders
    (there / "run.toml").write_text('[[orchestrator.env]]\nid = "gsm8k"\nargs = { dataset = "rows.jsonl" }\n')
    config = load_config(["@", str(there / "run.toml")])
    (tmp_path / "saved.toml").write_text(to_toml(config))
    monkeypatch.chdir(tmp_path)
    for environments in (True, False):
        assert load_config(["@", "saved.toml"], environments=environments) == config


def test_what_is_not_there_is_looked_for_beside_the_toml(folders: tuple[Path, Path]) -> None:
    there, _ = folders
    args = args_of(there, 'id = "gsm8k"\nargs = { dataset = "not_there.jsonl" }')
    with pytest.raises(AirError, match=f"There is no data at '{there}/not_there.jsonl'"):
        load_environment("gsm8k", args).tasks("train")


def test_reading_a_run_imports_nothing_of_it(folders: tuple[Path, Path]) -> None:
    there, here = folders
    (there / "harm.py").write_text(f"open({str(here / 'harmed')!r}, 'w')\n")
    (there / "run.toml").write_text('[[orchestrator.env]]\nid = "./harm.py:Env"\nargs = { a = "b" }\n')
    load_config(["@", str(there / "run.toml")], environments=False)
    assert not (here / "harmed").exists()
