"""Family D, as the doctor reports it: tasks, yardsticks, answers and sandboxes, looked at before anything runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.examined import TINY, findings, silent, trouble
from support.fixture_checkout import write_checkout

from airloop_envs.mlgym.fields import cannot_run

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def research(root: Path, *tasks: str, **more: Any) -> list[str]:
    args = {"task_configs": list(tasks), "mlgym_root": str(root), "source": "checkout", **more}
    rewards = ["--orchestrator.env.0.rewards", '{"improvement": 1.0}']
    return [*TINY, "--orchestrator.env.0.id", "mlgym", "--orchestrator.env.0.args", json.dumps(args), *rewards]


def change(root: Path, task: str, **values: Any) -> None:
    file = root / "configs/tasks" / f"{task}.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


def test_D5_a_task_without_a_baseline_and_without_a_way_to_measure_it(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)
    assert silent(research(root, "regressionKaggleHousePrice"), "D5"), "its script can be run"
    change(root, "regressionKaggleHousePrice", baseline_paths=[])
    ids, finding = trouble(research(root, "regressionKaggleHousePrice"), "D5")
    assert ids == ("D5",) and finding.verdict == "fail" and "no baseline r2" in finding.seen
    assert "regressionKaggleHousePrice = { baseline = 0.5 }" in finding.seen
    assert "air tasks check regressionKaggleHousePrice" in finding.fix


def test_D16_answers_that_can_be_read_and_labels_that_are_a_rule(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)
    found = [f for _, f in findings(research(root, "titanic"), "D16")]
    assert all(f.verdict == "warn" for f in found) and len(found) == 3
    assert "and so can the agent" in found[0].seen and "secret_files: [ground_truth.csv]" in found[0].seen
    assert "Survived follows from Sex alone" in found[1].seen and "secret_files" in found[1].fix
    assert silent(research(root, "regressionKaggleHousePrice", "prisonersDilemma"), "D16")


def test_D18_a_metric_that_nobody_knows(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)
    ids, finding = trouble(research(root, "oddMetric"), "D18")
    assert ids == ("D18",) and finding.verdict == "fail"
    assert 'oddMetric = { metric = "wobble", direction = "up" }' in finding.seen
    told = {"oddMetric": {"metric": "wobble", "direction": "down"}}
    assert silent(research(root, "oddMetric", metrics=told), "D18")


def test_D18_an_error_rewarded_upwards(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)
    change(root, "regressionKaggleHousePrice", baseline_scores=[{"rmse": 30340.11, "r2": 0.87999}])
    odd = {"regressionKaggleHousePrice": {"metric": "rmse", "direction": "up"}}
    ids, finding = trouble(research(root, "regressionKaggleHousePrice", metrics=odd), "D18")
    assert ids == ("D18",) and finding.verdict == "warn" and "against its usual direction" in finding.seen


def test_D5_a_split_without_tasks() -> None:
    argv = ["--orchestrator.eval.test_split", "nowhere", "--orchestrator.env.0.args.split_by", "pairs"]
    _, finding = trouble([*TINY, *argv], "D5")
    assert finding.verdict == "fail" and "has no tasks in the split 'nowhere': there is no such split" in finding.seen


@needs_bwrap
def test_D_a_sandbox_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = research(write_checkout(tmp_path), "prisonersDilemma")
    assert silent(argv, "D-sandbox")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # not installed
    ids, finding = trouble(argv, "D-sandbox")
    assert ids == ("D-sandbox",) and "`bwrap`, which is not installed" in finding.seen and "apt-get" in finding.fix
    (tmp_path / "bin" / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    _, finding = trouble(argv, "D-sandbox")
    assert "No permissions to create new namespace" in finding.seen and "user namespaces" in finding.fix


def test_D_an_environment_that_cannot_be_opened_is_said_once(tmp_path: Path) -> None:
    ids, finding = trouble([*TINY, "--orchestrator.env.0.id", f"{tmp_path}/gone.py:Env"])
    assert ids == ("D-tasks",) and finding.verdict == "fail" and "gone.py" in finding.seen
    assert "has no episodes to learn from" in finding.why and "correct its id" in finding.fix


def test_D_an_argument_that_an_environment_has_not_is_the_configs_mistake() -> None:
    ids, finding = trouble([*TINY, "--orchestrator.env.0.args.max_nmber", "3"])
    assert ids == ("A1",) and finding.verdict == "fail" and "max_nmber" in finding.seen
    assert "write --orchestrator.env.0.args.max_number 3" in finding.fix
    assert silent([*TINY, "--orchestrator.env.0.args.max_number", "3"], "D-tasks")


def test_D_what_is_to_be_done_about_a_task_is_said_once() -> None:
    said = str(cannot_run("titanic", "The data set is not here. Fix: pip install x."))
    assert said.lower().count("fix:") == 1 and "fix: pip install x; `air tasks check titanic` says more." in said
    assert str(cannot_run("titanic", "It has no metric.")).count("fix:") == 1
