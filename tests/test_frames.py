"""`airloop.load_run`: a run as data frames."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_runs import tiny_run

import airloop
from airloop import extras

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded() -> airloop.LoadedRun:
    return airloop.load_run(tiny_run())


def test_steps_are_rows_and_tables_are_columns(loaded: airloop.LoadedRun) -> None:
    lines = loaded.run.metrics("train")
    assert list(loaded.steps.index) == [0, 1] == [line["step"] for line in lines]
    assert list(loaded.steps["learner/entropy"]) == [line["learner"]["entropy"] for line in lines]
    assert list(loaded.steps["reward"]) == [line["reward"] for line in lines]
    assert len(loaded.steps["rewards"].iloc[0]) == 8, "lists stay what they are"
    assert repr(loaded) == f"<{loaded.path.name}: completed>"


def test_episodes_are_rows(loaded: airloop.LoadedRun) -> None:
    episodes = loaded.episodes
    assert len(episodes) == 16 and set(episodes.step) == {0, 1} and set(episodes.env) == {"arith"}
    for step, line in loaded.steps.iterrows():
        assert episodes[episodes.step == step].reward.mean() == pytest.approx(line.reward)
    assert (episodes.success == episodes["metrics/correct"]).all()
    first = loaded.trajectory(episodes.index[0])
    assert first.task.id == episodes.task.iloc[0] and first.turns
    with pytest.raises(KeyError):
        loaded.trajectory("nothing")


def test_evaluations_are_rows_and_so_are_their_episodes(loaded: airloop.LoadedRun) -> None:
    assert list(loaded.evaluations.index) == ["before", "step_0001", "step_0002", "after"]
    after = loaded.evaluation("after")
    assert len(after) == 8 and set(after.split) == {"test"}
    assert loaded.evaluation("never").empty and len(loaded.alarms) == len(loaded.run.alarms())


def test_what_is_no_run_and_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(airloop.AirError, match="is not a run"):
        airloop.load_run(tmp_path)
    monkeypatch.setattr(extras, "missing", lambda *_: ["pandas"])
    with pytest.raises(airloop.AirError, match="load_run needs pandas"):
        airloop.load_run(tiny_run())
