"""Which number counts and which way is better, and the rewards made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.errors import AirError
from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.spec import Yardstick


@pytest.mark.parametrize(
    ("scores", "metric"),
    [
        ([{"RMSE": 2.0, "rows": 100.0}], ("RMSE", "down")),
        ([{"Val_Loss": 2.0}], ("Val_Loss", "down")),
        ([{"rmse": 2.0, "r2": 0.5}], "'rmse' and 'r2': which of them counts"),
        ([{"wobble": 2.0}], "none has a known direction"),
        ([], "does not say which metric"),
    ],
)
def test_D18_an_unknown_tasks_metric_is_known_or_asked_for(scores: Any, metric: tuple[str, str] | str) -> None:
    if isinstance(metric, tuple):
        stick = metrics.yardstick("mine", "mine", scores)
        assert (stick.metric, stick.direction) == metric
    else:
        with pytest.raises(metrics.UnknownMetric, match=metric) as caught:
            metrics.yardstick("mine", "mine", scores)
        assert "args = { metrics = { mine = { metric = " in caught.value.fix


def test_every_task_of_mlgym_has_a_metric_with_a_direction() -> None:
    for name, task in metrics.TASKS.items():
        assert metrics.known_metric(task.metric), name
        assert metrics.yardstick(name, name).metric == task.metric
    assert metrics.yardstick("3SATTime", "3SATTime", [{"Time": 16.158, "Correct": 24000.0}]).direction == "down"


def test_pick_compares_without_case_and_refuses_what_is_no_score() -> None:
    assert metrics.pick({"Accuracy": 1}, "accuracy") == 1.0
    assert metrics.pick({"Accuracy": 0.1, "accuracy": 0.2}, "accuracy") == 0.2
    with pytest.raises(metrics.ScoreError, match="has no 'accuracy'; it has 'rmse', 'r2'"):
        metrics.pick({"rmse": 1.0, "r2": 2.0}, "accuracy")
    with pytest.raises(metrics.ScoreError, match="differ only in case"):
        metrics.pick({"Accuracy": 0.1, "ACCURACY": 0.2}, "accuracy")
    for value in (math.nan, math.inf, -math.inf, True, "0.9", None, [0.9], 10**400):
        with pytest.raises(metrics.ScoreError):
            metrics.pick({"accuracy": value}, "accuracy")


def test_a_score_above_the_optimum_is_too_good_to_be_true() -> None:
    for name, honest, cheat in (
        ("prisonersDilemma", 2.632, 2.66),
        ("battleOfSexes", 1.444, 2.0),
        ("blotto", 0.25, 0.3),
    ):
        stick = metrics.yardstick(name, name)
        assert not metrics.too_good(stick, honest) and metrics.too_good(stick, cheat)
    accuracy = metrics.yardstick("titanic", "titanic")
    assert not metrics.too_good(accuracy, 1.0) and metrics.too_good(accuracy, 1.01)
    assert metrics.too_good(metrics.yardstick("3SATTime", "3SATTime"), -1.0)


def test_rewards_by_hand() -> None:
    up = Yardstick("r2", "up", 0.8, 0.9)
    down = Yardstick("rmse", "down", 100.0, 50.0)
    assert metrics.improvement(up, 0.8, 0.88) == pytest.approx(1.0)
    assert metrics.improvement(down, 100.0, 90.0) == pytest.approx(1.0)
    assert metrics.improvement(Yardstick("Score", "up", 0.0, 1.0, floor=0.5), 0.0, 0.1) == pytest.approx(2.0)
    assert metrics.improvement(Yardstick("Score", "up", -0.25, 0.25), -0.25, 0.0) == pytest.approx(10.0)
    assert metrics.headroom(up, 0.8, 0.85) == pytest.approx(0.5)
    assert metrics.headroom(down, 100.0, 75.0) == pytest.approx(0.5)
    assert metrics.headroom(down, 100.0, 1000.0) == -1.0 and metrics.headroom(up, 0.8, 0.99) == 1.0
    for reference in (None, 0.7):
        with pytest.raises(AirError, match="reference"):
            metrics.headroom(Yardstick("r2", "up", 0.8, reference), 0.8, 0.9)


finite = st.floats(-1e6, 1e6)


@given(st.sampled_from(["up", "down"]), finite, finite, finite, finite)
def test_rewards_agree_with_better(direction: Any, baseline: float, reference: float, a: float, b: float) -> None:
    stick = Yardstick("m", direction, baseline, reference)
    if metrics.better(stick, a, b):
        assert metrics.improvement(stick, baseline, a) >= metrics.improvement(stick, baseline, b)
        assert not metrics.better(stick, b, a)
    if metrics.better(stick, reference, baseline):
        assert -1 <= metrics.headroom(stick, baseline, a) <= 1
        assert metrics.headroom(stick, baseline, baseline) == 0 and metrics.headroom(stick, baseline, reference) == 1


def test_improved_is_more_than_rounding_noise_and_a_lucky_row() -> None:
    stick = metrics.yardstick("regressionKaggleHousePrice", "", [{"r2": 0.8799891474739243}])
    baseline = stick.baseline
    assert baseline is not None and stick.reference == 0.931
    assert not metrics.improved(stick, baseline, 0.8799891474739265)  # the same script on another machine
    assert not metrics.improved(stick, baseline, baseline + 0.0005) and metrics.improved(stick, baseline, 0.881)
    game = metrics.yardstick("blotto", "", [{"Score": -0.248}])
    assert not metrics.improved(game, -0.248, -0.237) and metrics.improved(game, -0.248, -0.23)
    time = metrics.yardstick("3SATTime", "", [{"Time": 16.0}])  # lower is better, and no reference is known
    assert metrics.improved(time, 16.0, 15.9) and not metrics.improved(time, 16.0, 16.0 - 1e-9)
