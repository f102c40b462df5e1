"""Several environments in one run: each has the share of the tasks that its ratio says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny_runs import CONFIG

from airloop.assemble import training_schedule
from airloop.config import load_config
from airloop.envs.arith import ArithEnv
from airloop.errors import AirError
from airloop.types import Task
from airloop.warmstart import warmstart_directory

TWO = """
[[orchestrator.env]]
id = "arith"
name = "second"
args = { max_number = 3 }
"""


def config_of(folder: Path, *ratios: str) -> Path:
    first, second = (*ratios, "", "")[:2]
    text = CONFIG.replace("OUT", str(folder)).replace("TRAIN", "lora")
    path = folder / "run.toml"
    path.write_text(f"{text}{first}\n{TWO}{second}\n")
    return path


def test_one_ratio_is_against_the_others_one(tmp_path: Path) -> None:
    config = load_config(["@", str(config_of(tmp_path, "ratio = 3"))])
    envs = {"arith": ArithEnv(), "second": ArithEnv()}
    names = [task.env for task in training_schedule(config, envs).batch(0, 40)]
    assert names.count("arith") == 30
    assert "arith 75%" in training_schedule(config, envs).describe(8, 4, 2)
    plain = load_config(["@", str(config_of(tmp_path))])
    assert "mixed" not in training_schedule(plain, envs).describe(8, 4, 2)


def test_a_ratio_changes_the_supervised_start_only_where_it_is_said(tmp_path: Path) -> None:
    plain = load_config(["@", str(config_of(tmp_path)), "--warmstart.steps", "2"])
    mixed = load_config(["@", str(config_of(tmp_path, "ratio = 2")), "--warmstart.steps", "2"])
    assert warmstart_directory(plain) != warmstart_directory(mixed)


@pytest.mark.parametrize(
    ("success", "family", "why"), [("correct", "", "one family"), (None, "some", "no environment says what success is")]
)
def test_a_curriculum_that_could_choose_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, success: str | None, family: str, why: str
) -> None:
    tasks = ArithEnv.tasks

    def named(self: ArithEnv, split: str) -> list[Task]:
        found = enumerate(tasks(self, split))
        return [replace(task, family=f"{family}{i % 2}" if family else "") for i, task in found]

    monkeypatch.setattr(ArithEnv, "tasks", named)
    monkeypatch.setattr(ArithEnv, "success", success)
    config = load_config(["arith", "--orchestrator.curriculum.low", "0.1"])
    with pytest.raises(AirError, match=why):
        training_schedule(config, {"arith": ArithEnv()})
    monkeypatch.setattr(ArithEnv, "success", "correct")
    if family:
        assert "at first" in training_schedule(config, {"arith": ArithEnv()}).describe(8, 4, 2)


def test_a_ratio_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AirError, match="ratio"):
        load_config(["@", str(config_of(tmp_path, "ratio = 0"))])
