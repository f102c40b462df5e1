"""`import airloop`: light, lazy, and all that it promises."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.tiny_runs import tiny_run, write_config

import airloop
from airloop.envs.base import load_environment
from airloop.shipped import shipped

LIGHT = """
import json, os, sys
before = dict(os.environ)
import airloop
slow = [name for name in ("torch", "transformers", "pydantic", "numpy") if name in sys.modules]
print(json.dumps({"slow": slow, "set": sorted({*os.environ.items()} - {*before.items()})}))
"""


def test_importing_it_imports_nothing_slow_and_sets_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {"slow": [], "set": []}


def test_every_public_name_is_there_with_a_docstring() -> None:
    assert set(airloop.__all__) <= set(dir(airloop))
    for name in airloop.__all__:
        assert getattr(airloop, name) is not None, name
        assert inspect.getdoc(getattr(airloop, name)), name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = airloop.trian  # type: ignore[attr-defined]


def example(thing: object) -> str:
    """The indented lines of a docstring."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


def test_examples_of_docstrings_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from airloop.config import with_changes
    from airloop.doctor import base

    (tmp_path / "my.toml").write_text("max_steps = 3\n")
    monkeypatch.chdir(tmp_path)
    base.checks()  # all are registered: what is imported only while the list is a copy would be lost with it
    monkeypatch.setattr(base, "_CHECKS", dict(base._CHECKS))
    names = {**vars(base), **{name: getattr(airloop, name) for name in airloop.__all__}, "with_changes": with_changes}
    exec(example(airloop.load_config) + "\n" + example(with_changes), names)
    assert names["config"].max_steps == 200 and names["longer"].trainer.optim.lr == 1e-5
    exec(example(base.check), names)
    assert base.checks(["my-data"])[0].run(None).verdict == "pass"  # type: ignore[arg-type, union-attr]
    names["load_environment"] = load_environment
    exec(example(load_environment), names)
    lines = example(airloop.Session).replace("\n", "\n    ")
    exec(f"async def play(env, task):\n    {lines}\n    return score", names)
    task = next(t for t in names["env"].tasks("train") if t.payload["answer"] == 7)
    assert asyncio.run(names["play"](names["env"], task)).rewards["correct"] == 1.0
    for thing in (airloop.train, airloop.evaluate, airloop.Task, airloop.Run, airloop.Environment, airloop.Engine):
        compile(example(thing), "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_a_script_is_evaluated_by_name_by_words_and_by_config(tmp_path: Path) -> None:
    words = ["arith", "--output_dir", str(tmp_path / "out")]
    file = tmp_path / "arith.toml"
    file.write_text(shipped("arith").read_text())
    found = [
        airloop.evaluate("scripted:oracle", config, n=6, rollouts=1, out=tmp_path / f"{number}", quiet=True)
        for number, config in enumerate((words, airloop.load_config(words), "arith", str(file), file))
    ]
    for report in found:
        assert report["finished"] and report["means"]["reward"]["mean"] == 1.0
    assert all(report["rows"] == found[0]["rows"] for report in found)
    with pytest.raises(airloop.AirError, match="There is no agent"):
        airloop.evaluate("oracle", words, quiet=True)


@pytest.mark.slow
def test_a_run_is_trained_by_name_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(airloop.AirError, match="give one of the two"):
        airloop.train("arith", resume=tmp_path)
    with pytest.raises(airloop.AirError, match="give one of the two"):
        airloop.train()
    config = write_config(tmp_path)
    run = airloop.train(str(config), skip_proofs=True, quiet=True).run
    again = airloop.train(resume=run.path, quiet=True).run
    assert again.path == run.path and again.metrics("train") == run.metrics("train")


@pytest.mark.slow
def test_a_run_is_evaluated_in_another_environment_without_its_config(tmp_path: Path) -> None:
    run = tiny_run()
    report = airloop.evaluate(
        f"run:{run}", env="arith", args={"max_number": 3}, n=5, rollouts=1, out=tmp_path / "out", quiet=True
    )
    assert report["finished"] and report["version"] == 2 and {row["env"] for row in report["rows"]} == {"arith"}
    own = airloop.evaluate(f"run:{run}", n=5, rollouts=1, out=tmp_path / "own", quiet=True)
    assert {row["task"] for row in own["rows"]} != {row["task"] for row in report["rows"]}
    with pytest.raises(airloop.AirError, match="none is named"):
        airloop.evaluate(f"run:{run}", args={"max_number": 3}, quiet=True)
    with pytest.raises(airloop.AirError, match="No environment is registered as 'arit'"):
        airloop.evaluate(f"run:{run}", env="arit", quiet=True)
