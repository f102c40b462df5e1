"""E3, E5 and E8 in whole runs of a tiny model: a grader that throws, tasks sorted by difficulty, slow episodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.talk_env import Talk, talking
from support.watched_runs import run_watched

from airloop.rollout.episode import EpisodeDefect
from airloop.runs.run import read_trajectories

FRESH = {  # random weights, four groups of four, nothing learned
    "warmstart.steps": "0",
    "orchestrator.batch_size": "16",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "4",
    "orchestrator.retries": "0",
    "orchestrator.eval.num_examples": "1",
    "trainer.optim.lr": "1e-4",
    "max_steps": "1",
}
Scored = tuple[dict[str, float], dict[str, float]]


def coin(number: int, seed: int) -> Scored:
    return {"won": float(seed % 2)}, {}


def test_E3_a_grader_that_throws_stops_the_run_with_the_trajectory(tmp_path: Path) -> None:
    """It meets a message of another type at its eighth episode, in the first step: no reward of 0 hides that."""
    episodes = iter(range(100))

    def parses(number: int, seed: int) -> Scored:
        message: dict[str, str] = {} if next(episodes) == 7 else {"content": "won"}
        return {"won": float(message["content"] == "won")}, {}

    run, _, error = run_watched(tmp_path, talking(Talk(parses)), **FRESH)
    assert isinstance(error, EpisodeDefect)
    assert "Environment 'talk', task 't" in error.problem and "KeyError: 'content'" in error.problem
    (thrown,) = [t for t in read_trajectories(run.path / "trajectories" / "step_0000") if t.error]
    assert "defect: Traceback" in thrown.error and "in parses" in thrown.error and thrown.turns
    assert (thrown.ending, thrown.rewards, thrown.reward) == ("infra_error", {}, 0.0)  # no episode to train on
    assert run.metrics("train") == []


def test_E3_a_grader_that_works_stops_nothing(tmp_path: Path) -> None:
    run, _, error = run_watched(tmp_path, talking(Talk(coin)), **FRESH)
    assert error is None and not any(t.error for t in read_trajectories(run.path / "trajectories" / "step_0000"))


def test_E5_tasks_sorted_by_difficulty_come_shuffled_and_each_family_has_its_curve(tmp_path: Path) -> None:
    """The environment lists its tasks from easy to hard and pays by difficulty. In that order the mean reward would
    rise through every epoch; shuffled by the seed it does not, and the families' own curves are flat."""

    def by_difficulty(number: int, seed: int) -> Scored:
        return {"won": number / 8}, {}

    talk = Talk(by_difficulty, tasks=8, family=lambda number: f"level {number}")
    changes = {"max_steps": "4", "orchestrator.batch_size": "16"}
    run, _, error = run_watched(tmp_path, talking(talk), **{**FRESH, **changes})
    lines = run.metrics("train")
    epochs = [[*lines[i]["task"], *lines[i + 1]["task"]] for i in (0, 2)]
    seen = [[t.task.payload["number"] for _, t in sorted(run.finished(step).items())][::4] for step in range(4)]
    orders = [seen[0] + seen[1], seen[2] + seen[3]]
    assert error is None
    assert all(sorted(epoch) == [f"level {i}" for i in range(8)] for epoch in epochs), "each task once an epoch"
    assert all(order not in (sorted(order), sorted(order, reverse=True)) for order in orders)
    assert orders[0] != orders[1]
    for line in lines:
        assert all(row["reward"] == pytest.approx(int(name.split()[1]) / 8) for name, row in line["task"].items())


def test_E8_slow_episodes_are_waited_for_and_trained_on(tmp_path: Path) -> None:
    """Sampling and training take turns: however slow, an episode is of the policy that its step trains."""
    talk = Talk(coin, tool_s=lambda seed: 1.0 if seed % 8 < 2 else 0.0)
    run, _, error = run_watched(tmp_path, talking(talk), **FRESH)
    (line,) = run.metrics("train")
    ledger = line["ledger"]
    assert error is None and ledger["stale"] == ledger["infra_error"] == 0
    assert sum(part["episodes"] for part in ledger["by_duration"].values()) == 16
    assert ledger["by_duration"]["slowest"]["trained"] > 0 and ledger["by_duration"]["slowest"]["up_to_s"] > 1
    assert (line["versions"]["sampled_from"], line["versions"]["sampled_to"]) == (0, 0)


def test_E8_what_is_lost_among_the_slow_is_seen_in_the_ledger(tmp_path: Path) -> None:
    """The machinery loses those that take long: the columns say so, by duration."""
    slow = lambda seed: seed % 8 < 2  # noqa: E731
    talk = Talk(coin, tool_s=lambda seed: 1.0 if slow(seed) else 0.0, fails=slow)
    run, witness, _ = run_watched(tmp_path, talking(talk), **FRESH)
    (line,) = run.metrics("train")
    by_duration = line["ledger"]["by_duration"]
    assert list(by_duration) == ["fastest", "fast", "slow", "slowest"]
    assert by_duration["fastest"]["infra_error"] == by_duration["fast"]["infra_error"] == 0
    assert by_duration["slowest"]["infra_error"] > 0 and by_duration["slowest"]["up_to_s"] > 1
    assert sum(part["tokens"] for part in by_duration.values()) == line["ledger"]["tokens"]
    assert any("lost: " in text and "infra error" in text for text in witness.said)
