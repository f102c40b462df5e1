"""E6 of FAILURES.md: a trained model on 50 easy rows against a baseline on 680, "+30 points"."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run, write_config

from airloop.errors import AirError
from airloop.eval.compare import compare_named
from airloop.eval.evaluate import EvalOptions, evaluate
from airloop.watch.display.display import Display


def measured(directory: Path, name: str, *argv: str, agent: str = "scripted:demo", **options: Any) -> str:
    given = dataclasses.replace(EvalOptions(agent, **options), out=directory / name)
    return str(evaluate(["@", str(write_config(directory)), *argv], given, Display(quiet=True))["directory"])


def refused(*names: str, common: bool = False) -> AirError:
    with pytest.raises(AirError) as error:
        compare_named(names, common)
    return error.value


def test_E6_unequal_rows_are_refused_and_named(tmp_path: Path) -> None:
    few = measured(tmp_path, "few", n=6, split="train")
    many = measured(tmp_path, "many", n=20, split="train")
    error = refused(few, many)
    assert "A has 6 rows, B has 20, and 6 are in both" in error.problem
    assert "only in B" in error.problem and "seed" in error.problem
    assert "--n 6" in error.fix and "--common" in error.fix
    comparison = compare_named([few, many], common=True)
    assert (comparison.rows, comparison.left_out) == (6, 14)


def test_E6_other_splits_have_no_row_in_common(tmp_path: Path) -> None:
    train = measured(tmp_path, "train", n=8, split="train")
    test = measured(tmp_path, "test", n=8)
    error = refused(train, test)
    assert "0 are in both" in error.problem and "--split train" in error.fix and "--common" not in error.fix
    assert "no scored row in common" in refused(train, test, common=True).problem


def test_E6_other_sampling_is_refused_even_on_equal_rows(tmp_path: Path) -> None:
    hot = measured(tmp_path, "hot", agent="model")
    cold = measured(tmp_path, "cold", "--orchestrator.sampling.max_tokens", "3", agent="model", temperature=0.0)
    for common in (False, True):
        error = refused(hot, cold, common=common)
        assert "sampling.temperature is 1.0 in A and 0.0 in B" in error.problem
        assert "sampling.max_tokens is 4 in A and 3 in B" in error.problem
        assert "--temperature 1.0" in error.fix and "--orchestrator.sampling.max_tokens 4" in error.fix


def test_E6_other_mode_is_refused_even_on_equal_rows(tmp_path: Path) -> None:
    here = measured(tmp_path, "here", agent="model")
    there = measured(
        tmp_path,
        "there",
        "--seq_len",
        "64",
        "--orchestrator.env",
        '[{id = "arith", args = {demo_accuracy = 0.9}}]',
        agent="model",
    )
    error = refused(here, there)
    assert "mode.context is 128 in A and 64 in B" in error.problem
    assert "mode.env.arith.args.demo_accuracy is 0.5 in A and 0.9 in B" in error.problem
    assert "--orchestrator.env.0.args.demo_accuracy 0.5" in error.fix and "--seq_len 128" in error.fix


@pytest.mark.slow
def test_E6_a_run_is_compared_under_the_conditions_of_its_config(tmp_path: Path) -> None:
    after = f"{tiny_run()}:after"
    cold = str(tmp_path / "cold")
    options = EvalOptions(f"run:{tiny_run()}", temperature=0.0, out=Path(cold))
    evaluate([], options, Display(quiet=True))
    assert "sampling.temperature is 1.0 in A and 0.0 in B" in refused(after, cold).problem
    same = str(tmp_path / "same")
    evaluate([], dataclasses.replace(options, temperature=None, out=Path(same)), Display(quiet=True))
    assert compare_named([after, same]).overall["reward"].gain.mean == 0.0


def test_E6_a_task_that_was_changed_under_its_name_is_another_row(tmp_path: Path) -> None:
    a, b = measured(tmp_path, "a"), measured(tmp_path, "b")
    path = next((Path(b) / "episodes").glob("*.json"))
    data = json.loads(path.read_text())
    data["task"]["payload"]["answer"] += 1
    path.write_text(json.dumps(data))
    error = refused(a, b)
    assert "1 tasks were changed in between" in error.problem and "answer" in error.problem
    assert compare_named([a, b], common=True).left_out == 1


def test_E6_a_script_samples_nothing_and_can_be_compared(tmp_path: Path) -> None:
    oracle = measured(tmp_path, "oracle", agent="scripted:oracle")
    comparison = compare_named([f"{tiny_run()}:after", oracle])
    assert comparison.overall["reward"].verdict == "B is higher"
    assert any("samples nothing" in note for note in comparison.notes)
