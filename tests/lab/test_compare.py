"""air compare: paired differences, and when they say something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run

from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.eval.compare import Side, as_json, compare, compare_named, format_comparison, read_side
from airloop.eval.conditions import Conditions
from airloop.types import Task, Trajectory
from airloop.watch.metrics.rows import scored_rows

MODE = {
    "env": {"toy": {"id": "toy", "args": {"max_turns": 4}, "max_turns": 4}},
    "context": 512,
    "parser": "auto",
}
SAMPLING = {"temperature": 1.0, "max_tokens": 40}


def episode(
    task: int,
    reward: float,
    sample: int = 0,
    ending: Any = "done",
    payload: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Trajectory:
    return Trajectory(
        f"{task}-{sample}",
        Task("toy", str(task), "test", payload or {}),
        seed=1000 * task + sample,
        version=0,
        turns=(),
        branches=(),
        ending=ending,
        rewards={},
        turn_rewards=(),
        metrics=metrics or {},
        reward=reward,
        started=float(task),
        seconds=1.0,
    )


def side(label: str, episodes: Sequence[Trajectory], sampling: Any = SAMPLING, mode: Any = MODE) -> Side:
    scored, lost = scored_rows(episodes)
    return Side(label, Conditions(sampling, mode), frozenset({*scored, *lost}), scored, "test")


def test_a_difference_on_every_row_is_found() -> None:
    a = side("A", [episode(i, i / 10) for i in range(12)])
    b = side("B", [episode(i, i / 10 + 0.2 + (i % 2) / 100) for i in range(12)])
    line = compare(a, b).overall["reward"]
    assert line.gain.mean == pytest.approx(0.205) and line.verdict == "B is higher"
    assert line.gain.high - line.gain.low < 0.02  # paired: the rows' own difficulty cancels
    assert line.a.high - line.a.low > 0.3
    assert compare(b, a).overall["reward"].verdict == "B is lower"


def test_noise_is_no_evidence() -> None:
    a = side("A", [episode(i, 0.0) for i in range(12)])
    b = side("B", [episode(i, 1.0 if i % 2 else -1.0) for i in range(12)])
    assert compare(a, b).overall["reward"].verdict == "no evidence of a difference"
    assert "no evidence of a difference" in format_comparison(compare(a, b))


def test_a_handful_of_tasks_says_nothing() -> None:
    a = side("A", [episode(i, 0.0, s) for i in range(5) for s in range(8)])
    b = side("B", [episode(i, 1.0, s) for i in range(5) for s in range(8)])
    comparison = compare(a, b)
    assert comparison.rows == 40 and comparison.overall["reward"].verdict == "too few tasks to tell (5 of 6)"


def test_episodes_of_one_task_are_not_independent() -> None:
    """Eight samples of each task that all say the same make the interval no narrower."""
    gains = [0.3 if i % 3 else -0.3 for i in range(9)]
    one = compare(side("A", [episode(i, 0.0) for i in range(9)]), side("B", [episode(i, gains[i]) for i in range(9)]))
    many = compare(
        side("A", [episode(i, 0.0, s) for i in range(9) for s in range(8)]),
        side("B", [episode(i, gains[i], s) for i in range(9) for s in range(8)]),
    )
    assert many.rows == 72
    assert many.overall["reward"].gain == one.overall["reward"].gain


def test_lost_rows_are_left_out_and_counted() -> None:
    a = side("A", [episode(i, 1.0) for i in range(10)])
    b = side("B", [episode(i, 0.0, ending="infra_error" if i < 2 else "done") for i in range(10)])
    comparison = compare(a, b)
    assert (comparison.rows, comparison.lost, comparison.left_out) == (8, 2, 0)
    assert "2 rows lost to infrastructure trouble" in format_comparison(comparison)


def test_a_repeated_episode_counts_once() -> None:
    scored, lost = scored_rows([episode(1, 0.0, ending="infra_error"), episode(1, 0.7)])
    assert [t.reward for t in scored.values()] == [0.7] and not lost


def test_groups_by_kind() -> None:
    def make(gain: float) -> list[Trajectory]:
        kinds = ["easy", "hard"]
        return [episode(i, gain * (i % 2), payload={"kind": kinds[i % 2]}) for i in range(16)]

    comparison = compare(side("A", make(0.0)), side("B", make(1.0)))
    verdicts = {name: lines["reward"].verdict for name, lines in comparison.groups["kind"].items()}
    assert verdicts == {"easy": "no evidence of a difference", "hard": "B is higher"}
    assert "reward by kind" in format_comparison(comparison)
    assert as_json(comparison)["groups"]["kind"]["hard"]["reward"]["difference"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("env", "groups", "among"), [("soup", ["level", "kind"], "primer"), ("musique", ["hops"], "generated-3hop")]
)
def test_levels_kinds_and_hops_are_groups(env: str, groups: list[str], among: str) -> None:
    """Of the environments' own tasks. Two divisions that are the same are shown once."""
    tasks = load_environment(env).tasks("eval")[:120]

    def make(gain: float) -> list[Trajectory]:
        return [replace(episode(i, gain * (task.curve == among)), task=task) for i, task in enumerate(tasks)]

    found = compare(side("A", make(0.0)), side("B", make(1.0))).groups
    assert list(found) == groups
    verdicts = {name: lines["reward"].verdict for name, lines in found[groups[0]].items()}
    assert verdicts.pop(among) == "B is higher"
    assert {*verdicts.values()} == {"no evidence of a difference"}


def test_families_of_several_environments_are_tasks() -> None:
    made = [replace(episode(i, 0.0), task=Task("mlgym", str(i), "test", family=f"f{i % 2}")) for i in range(12)]
    assert [*compare(side("A", made), side("B", made)).groups] == ["task"]


def test_metrics_are_compared_where_both_sides_have_them() -> None:
    a = side("A", [episode(i, 0.0, metrics={"turns": 1.0, "cost": 2.0}) for i in range(8)])
    b = side("B", [episode(i, 0.0, metrics={"turns": 3.0}) for i in range(8)])
    comparison = compare(a, b)
    assert list(comparison.overall) == ["reward", "turns"] and comparison.overall["turns"].gain.mean == 2.0
    assert any("only one side has cost" in note for note in comparison.notes)


@pytest.mark.slow
def test_before_and_after_of_a_run() -> None:
    comparison = compare_named([str(tiny_run())])
    assert (comparison.a, comparison.b) == (f"{tiny_run()}:before", f"{tiny_run()}:after")
    assert comparison.rows == 8 and comparison.overall["reward"].gain.n == 8
    assert {"correct", "sampled_tokens"} <= comparison.overall.keys()


@pytest.mark.parametrize(
    ("names", "problem", "fix"),
    [
        (["RUN", "RUN:after"], "several evaluations: after, before, step_0001", "RUN:after"),
        (["RUN:never", "RUN:after"], "no evaluation 'never'", "it has: after"),
        (["/nowhere", "RUN:after"], "neither an evaluation", "air eval"),
        (["RUN:after"], "needs two evaluations", "air compare RUN"),
    ],
)
def test_a_name_that_fits_nothing_is_told_with_what_there_is(names: list[str], problem: str, fix: str) -> None:
    run = str(tiny_run())
    with pytest.raises(AirError) as error:
        compare_named([name.replace("RUN", run) for name in names])
    assert problem in error.value.problem and fix.replace("RUN:", f"{run}:") in error.value.fix


@pytest.mark.parametrize(("text", "said"), [("{", "Expecting"), ("[]", "it lacks"), ('{"finished": true}', "rows")])
def test_a_damaged_evaluation_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(AirError, match="is damaged") as error:
        read_side(str(tmp_path))
    assert said in error.value.problem and "evaluate again" in error.value.fix


def test_an_unfinished_evaluation_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text('{"finished": false}')
    with pytest.raises(AirError, match="stopped before its end"):
        read_side(str(tmp_path))
