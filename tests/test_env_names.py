"""A run may have one environment several times, with other arguments and rewards: each under the run's name for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import write_config

from airloop.assemble import rollout_settings
from airloop.config import Config, load_config
from airloop.environments import load_environments
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.env_names import names_by_id
from airloop.runs.run import Run
from airloop.training import start
from airloop.types import Task, Trajectory
from airloop.watch.display.display import Display
from airloop.watch.display.summary import paired

TWICE = """\
name = "whole"
[[orchestrator.env]]
id = "arith"
name = "half"
rewards = { correct = 0.5 }
[trainer.loss]
credit = "turn"
"""


def config_of(directory: Path) -> Config:
    return load_config(["@", str(write_config(directory, extra=TWICE)), "--max_steps", "1"])


def demonstrations(config: Config) -> tuple[Trajectory, ...]:
    envs = load_environments(config)
    sampler = Sampler(None, None, envs, rollout_settings(config), lambda *_: None)
    plan = TaskSchedule(envs, "train", 0).batch(0, 16)

    def oracle(env: Any, task: Task, seed: int) -> Any:
        return env.scripted("oracle", task, seed)

    return asyncio.run(sampler.evaluate(plan, oracle)).trajectories


def test_each_is_weighed_as_its_own_entry_says(tmp_path: Path) -> None:
    played = demonstrations(config_of(tmp_path))
    assert {(t.task.env, t.task.curve, t.reward) for t in played} == {("whole", "whole", 1.0), ("half", "half", 0.5)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = config_of(tmp_path_factory.mktemp("names"))
    return Run.open(start(config, Display(quiet=True), skip_proofs=True).run.path)


def test_a_run_with_credit_by_turn_trains_on_both_and_shows_them_apart(run: Run) -> None:
    assert run.status()["status"] == "completed"
    assert {t.task.env for t in run.evaluation("after")} == {"whole", "half"}
    assert set(run.evaluations()[-1]["task"]) == {"whole", "half"}


def test_episodes_that_an_older_version_recorded_by_id_are_still_paired(tmp_path: Path) -> None:
    config = load_config(["@", str(write_config(tmp_path, extra='name = "sums"\n')), "--max_steps", "1"])
    path = start(config, Display(quiet=True), skip_proofs=True).run.path
    for file in (path / "evaluations" / "before").glob("*.json"):
        file.write_text(
            file.read_text().replace('"env": "sums"', '"env": "arith"').replace('"env":"sums"', '"env":"arith"')
        )
    assert "sums" not in next((path / "evaluations" / "before").glob("*.json")).read_text()
    run = Run.open(path)
    before, after = paired(run.evaluation("before"), run.evaluation("after"))
    assert len(before) == len(after) == 8


def test_an_id_that_two_entries_have_names_neither() -> None:
    assert names_by_id([("arith", "sums")]) == {"arith": "sums"}
    assert names_by_id([("arith", "whole"), ("arith", "half"), ("tune", "trees")]) == {"tune": "trees"}
    assert names_by_id([("arith", "tune"), ("tune", "trees")]) == {"arith": "tune"}  # "tune" is what arith is called
