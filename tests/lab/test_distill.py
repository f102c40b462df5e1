"""`air distill`: which episodes become demonstrations, and that a supervised start learns from them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import airloop
from airloop.errors import AirError
from airloop.eval.distill import Kept
from airloop.runs.run import read_trajectories
from airloop.types import Task, Trajectory
from airloop.warmstart import collect_demonstrations, warmstart
from airloop.watch.display.display import Display

EPISODE = Trajectory("a_0-0", Task("e", "t", "train"), 0, 0, (), (), "done", {}, (), {}, 0.0, 0.0, 0.0)


def episode(task: str, reward: float, **metrics: float) -> Trajectory:
    return replace(EPISODE, task=Task("e", task, "train"), reward=reward, metrics=metrics)


def test_of_each_task_the_best_that_succeeded_are_kept() -> None:
    played = [episode("a", r, success=float(r > 0.5)) for r in (0.9, 0.2, 0.7, 0.8)] + [episode("b", 0.1, success=0.0)]
    assert [t.reward for t in Kept(of_a_task=2).choose(played)] == [0.9, 0.8]
    assert [t.reward for t in Kept(of_a_task=9, reward=0.85).choose(played)] == [0.9]
    assert len(Kept(of_a_task=1, success=0.0).choose(played)) == 2


def test_where_nothing_says_what_success_is_a_reward_must() -> None:
    with pytest.raises(AirError, match="does not say what success is"):
        Kept().choose([episode("a", 1.0)])
    assert len(Kept(reward=0.5).choose([episode("a", 1.0), episode("b", 0.2)])) == 1


@pytest.mark.long
def test_a_policys_episodes_become_a_supervised_start(air: Any, tmp_path: Path) -> None:
    """After demonstrations that are right a third of the time: its own best are right always."""
    config = airloop.load_config(["arith", "--output_dir", str(tmp_path), "--warmstart.steps", "100"])
    begun, _ = asyncio.run(warmstart(config, Display(quiet=True)))
    words = ("--model.name", begun / "model", "--n", "15", "--rollouts", "12", "--keep", "2", "--json")
    code, printed, said = air("distill", "arith", *words, "--out", tmp_path / "played")
    assert code == 0, said
    report = json.loads(printed)
    demonstrations = read_trajectories(Path(report["directory"]))
    assert report["episodes"] == 180 and len(demonstrations) == report["demonstrations"] > report["tasks_solved"] > 5
    assert all(t.metrics["success"] == 1.0 and t.task.split == "train" and t.branches for t in demonstrations)
    assert max(Counter(t.task.id for t in demonstrations).values()) == 2
    again = airloop.load_config(["arith", "--warmstart.source", report["directory"]])
    found = asyncio.run(collect_demonstrations(again, Display(quiet=True)))
    assert {t.id for t in found} == {t.id for t in demonstrations}


def test_a_script_is_not_distilled(air: Any) -> None:
    assert "no tokens of its own" in air("distill", "--agent", "scripted:oracle")[2]
