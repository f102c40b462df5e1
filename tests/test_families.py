"""Each family of tasks has its own curve: in metrics.jsonl, on the terminal, in evaluations and the summary."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.tiny_runs import write_config

from airloop.config import load_config
from airloop.envs.arith import ArithArgs, ArithEnv, ArithSession
from airloop.rollout.schedule import TaskSchedule
from airloop.training import start
from airloop.types import Score, Task, Trajectory
from airloop.watch.display.display import Display
from airloop.watch.metrics.families import by_family, first_and_last, pooled, table
from airloop.watch.sinks import flat_line


def episode(family: str, reward: float, **metrics: float) -> Trajectory:
    task = Task("e", f"{family}-1", "train", family=family)
    return Trajectory("x", task, 0, 0, (), (), "done", {}, (), metrics, reward, 0.0, 0.0)


def test_figures_of_each_family_and_their_names_in_sinks() -> None:
    found = by_family(
        [
            episode("titanic", 1.0, improved=1.0, headroom=0.5),
            episode("titanic", 0.0, improved=0.0),
            episode("", 0.25),
        ]
    )
    assert found == {
        "e": {"episodes": 1, "reward": 0.25},
        "titanic": {"episodes": 2, "reward": 0.5, "improved": 0.5, "headroom": 0.5},
    }
    assert flat_line({"task": found})["train/task/titanic/improved"] == 0.5
    assert by_family([]) == {}


def test_steps_are_pooled_by_their_episodes() -> None:
    rows = [{"episodes": 1, "reward": 0.0, "improved": 1.0}, {"episodes": 3, "reward": 1.0}]
    assert pooled(rows) == {"episodes": 4, "reward": 0.75, "improved": 1.0}
    steps = [{"task": {"a": {"episodes": 2, "reward": float(i)}} | ({"b": rows[0]} if i else {})} for i in range(5)]
    columns = first_and_last(steps)
    assert columns["first 3 steps of each"]["a"]["reward"] == 1.0
    assert columns["last 3 steps of each"]["a"]["reward"] == 3.0
    lines = table({**columns, "other": {}}).splitlines()
    assert lines[1].split() == ["a", "reward", "1.000", "(6)", "reward", "3.000", "(6)", "–"] and len(lines) == 3


@pytest.mark.parametrize(
    ("families", "says"),
    [
        (
            [""] * 40,
            "40 examples; 4 examples a step = 32 rollouts / 8 each; 10 steps an epoch; 200 steps = 20.0 epochs",
        ),
        ([f"t{i % 4}" for i in range(40)], "40 examples (4 tasks × 10); 4 examples a step"),
        (["a", "b", "b"], "3 examples of 2 tasks (b 2, a 1); 4 examples a step = 32 rollouts / 8 each; 0.75 steps"),
        (
            [f"t{i}" for i in range(9)] * 1 + ["t0"],
            "10 examples of 9 tasks (t0 2, t1 1, t2 1, t3 1, t4 1, t5 1, 3 more)",
        ),
    ],
)
def test_the_schedule_says_what_an_epoch_is(families: list[str], says: str) -> None:
    class Listed(ArithEnv):
        def tasks(self, split: str) -> Sequence[Task]:
            return [Task("arith", str(i), split, family=family) for i, family in enumerate(families)]

    assert TaskSchedule({"e": Listed(ArithArgs())}, "train", 0).describe(32, 8, 200).startswith(says)


@pytest.mark.slow
def test_a_run_of_two_families_and_a_rank_within_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything through `air train`: the start, each step, the evaluations, the summary, the step's record."""
    tasks, finish = ArithEnv.tasks, ArithSession.finish

    def named(self: ArithEnv, split: str) -> Sequence[Task]:
        return [replace(t, family="even" if t.payload["answer"] % 2 == 0 else "odd") for t in tasks(self, split)]

    async def measured(self: ArithSession) -> Score:
        score = await finish(self)
        return replace(score, metrics={**score.metrics, "improved": score.rewards["correct"], "headroom": 0.25})

    def ranked(self: ArithEnv, trajectories: Sequence[Trajectory]) -> list[dict[str, float]]:
        longest = max(t.sampled_tokens for t in trajectories)
        return [{"longest": float(t.sampled_tokens == longest)} for t in trajectories]

    monkeypatch.setattr(ArithEnv, "tasks", named)
    monkeypatch.setattr(ArithEnv, "group_rewards", ranked)
    monkeypatch.setattr(ArithEnv, "reward_weights", {"correct": 1.0, "longest": 0.5})
    monkeypatch.setattr(ArithSession, "finish", measured)
    out = io.StringIO()
    config = load_config(["@", str(write_config(tmp_path)), "--max_steps", "4"])
    done = start(config, Display(Console(file=out, width=200)), skip_proofs=True)
    steps, evaluations = done.run.metrics("train"), done.run.metrics("eval")
    counts = {name: sum(s["task"].get(name, {}).get("episodes", 0) for s in steps) for name in ("even", "odd")}
    assert sum(counts.values()) == 32 and all(counts.values())
    assert all(row["headroom"] == 0.25 for s in steps for row in s["task"].values())
    assert all(0 <= s["components"]["longest"] <= 1 for s in steps)
    assert all(sum(row["episodes"] for row in e["task"].values()) == 8 for e in evaluations)
    said = out.getvalue()
    assert "2 examples a step = 8 rollouts / 4 each" in said and "4 steps = " in said
    assert "even correct " in said and "headroom 25%)" in said and ")   odd " in said
    assert "each task while training (episodes, shares):" in done.text and "last 3 steps of each" in done.text
    assert [line.split()[0] for line in done.text.splitlines() if line.startswith("  even ")] == ["even", "even"]
    # The episode's file has what it earned by itself, the step's record what training made of it.
    lines = [json.loads(x) for x in (done.run.path / "tokens" / "step_0000.jsonl").read_text().splitlines()]
    files = {t.id: t for t in done.run.finished(0).values()}
    assert all(set(line["rewards"]) == {"correct", "longest"} for line in lines)
    assert all(set(files[line["id"]].rewards) == {"correct"} for line in lines)
    assert all(line["reward"] == files[line["id"]].reward + 0.5 * line["rewards"]["longest"] for line in lines)
