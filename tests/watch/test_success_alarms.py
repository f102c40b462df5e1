"""E10, E7 and E11 on lines of metrics as runs write them: healthy ones are not accused, sick ones are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airloop.success import step_success
from airloop.watch.alarms.episode_rules import lengths_drift
from airloop.watch.alarms.reward_sources import RewardSource, corrected, find_reward_source
from airloop.watch.alarms.rules import Sign
from airloop.watch.alarms.success_rules import (
    as_good_as_doing_nothing,
    policy_gets_worse,
    success_falls_reward_does_not,
)
from airloop.watch.metrics.measured import is_share

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.jsonl"))
Line = dict[str, Any]
Watch = Callable[[Line, Sequence[Line]], Sign | None]
PATIENCE = 3


def raised(watch: Watch, lines: Sequence[Line]) -> int | None:
    """The step at which the alarm is raised."""
    row = 0
    for i, line in enumerate(lines):
        row = row + 1 if watch(line, lines[:i]) else 0
        if row == PATIENCE:
            return i
    return None


def series(
    rng: np.random.Generator, shares: Sequence[float], groups: int, kind: str, size: int = 8, spread: float = 1.0
) -> list[Line]:
    """Steps whose success is on average `shares`: each group is of one task, and tasks differ in difficulty as
    Beta(spread·p, spread·(1 − p)) does; at 1, most are nearly always or nearly never solved. The reward is success with
    a component for form beside it ("shaped"), or has nothing to do with it at all ("unrelated")."""
    lines = []
    for step, share in enumerate(shares):
        p = min(max(share, 1e-3), 1 - 1e-3)
        tasks = rng.beta(spread * p, spread * (1 - p), groups)
        won = rng.binomial(size, tasks) / size
        form = rng.binomial(size, 0.5, groups) / size
        rewards = won + 0.1 * form if kind == "shaped" else form
        # A group's mean stands for its episodes: the watch looks at nothing else.
        lines.append(
            {
                "step": step,
                "success": float(won.mean()),
                "success_name": "correct",
                "successes": won.tolist(),
                "rewards": rewards.tolist(),
                "group_sizes": [1] * groups,
                "ledger": {"paid": {"correct": float(won.mean()), "format": 0.1 * float(form.mean())}},
                "plan": {"rewards": {"gsm8k": {"correct": 1.0, "format": 0.1}}, "success": {"gsm8k": "correct"}},
            }
        )
    return lines


def recorded_courses() -> list[Sequence[float]]:
    """Where the success of each recorded healthy run went: from its first half's mean to its second's, over 50 steps,
    and never down. (Step by step it is noise, which the series have of their own.)"""
    found = []
    for path in HEALTHY:
        steps = [json.loads(line) for line in path.read_text().splitlines()]
        known = [success[1] for step in steps if (success := step_success(step))]
        if len(known) >= 20:
            half = len(known) // 2
            first, last = float(np.mean(known[:half])), float(np.mean(known[half:]))
            found.append(np.linspace(first, max(first, last), 50))
    return found


@pytest.mark.long
def test_E10_fewer_than_one_healthy_run_in_a_hundred_is_accused() -> None:
    """Runs of 50 steps along recorded courses of success, and flat ones; half of them the worst case, a reward that has
    nothing to do with success and so does not fall with it by chance."""
    rng = np.random.default_rng(0)
    courses = recorded_courses()
    assert len(courses) >= 10
    courses += [np.full(50, p) for p in (0.03, 0.1, 0.2, 0.35, 0.5, 0.8, 0.95)]
    accused, runs = {success_falls_reward_does_not: 0, policy_gets_worse: 0}, 120
    for i in range(runs):
        kind = "unrelated" if i % 2 else "shaped"
        lines = series(rng, courses[i % len(courses)], groups=(4, 8, 16)[i % 3], kind=kind)
        for watch in accused:
            accused[watch] += raised(watch, lines) is not None
    assert all(count <= runs / 100 for count in accused.values()), f"{accused} of {runs}"


@pytest.mark.parametrize(("high", "low", "groups"), [(0.4, 0.1, 8), (0.16, 0.05, 32), (0.9, 0.6, 16)])
def test_E10_a_fall_that_the_reward_does_not_feel_is_found_and_explained(high: float, low: float, groups: int) -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(20):
        lines = series(rng, [high] * 10 + [low] * 40, groups, "unrelated")
        for line in lines[10:]:
            line["ledger"]["paid"]["format"] += 0.04
        found.append(raised(success_falls_reward_does_not, lines))
    assert sum(step is not None for step in found) >= 18
    sign = success_falls_reward_does_not(lines[-1], lines[:-1])
    assert sign is not None and "correct fell from" in sign.seen and "format (0.0" in sign.why
    assert "rewards = { correct = 1.0 }" in sign.fix


def test_E10_where_the_reward_falls_too_it_is_another_matter() -> None:
    lines = series(np.random.default_rng(2), [0.5] * 10 + [0.05] * 30, 16, "shaped")
    assert raised(success_falls_reward_does_not, lines) is None
    found = raised(policy_gets_worse, lines)
    assert found is not None and found < 20
    sign = policy_gets_worse(lines[found], lines[:found])
    assert sign is not None and "correct fell from 5" in sign.seen and "and the reward with it (0." in sign.seen
    assert "lower trainer.optim.lr" in sign.fix


def test_E10_lines_of_older_versions_say_nothing() -> None:
    for path in HEALTHY:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert raised(success_falls_reward_does_not, lines) is None
        assert raised(as_good_as_doing_nothing, lines) is None


def shortened(**late: float) -> list[Line]:
    """200 tokens at first, 5 at last, as in the run that learned to stop thinking."""
    lines = series(np.random.default_rng(3), [0.16] * 6 + [0.07] * 10, 16, "unrelated")
    for line in lines:
        line["metrics"] = {"sampled_tokens": 200.0 if line["step"] < 6 else 5.0}
        if line["step"] >= 6:
            line["ledger"]["paid"] |= late
    return lines


def test_E7_names_the_component_that_pays_instead_of_another_loss() -> None:
    lines = shortened(format=0.1)
    sign = lengths_drift(lines[-1], lines[:-1])
    assert sign is not None and "from 200 sampled tokens" in sign.seen and "correct did not rise" in sign.seen
    assert "format (0.0" in sign.why and "rewards = { correct = 1.0 }" in sign.fix and "dr_grpo" not in sign.fix


def test_E7_where_no_component_pays_the_loss_is_the_cause() -> None:
    lines = shortened()
    for line in lines:
        line["ledger"]["paid"] = {"correct": line["success"]}
    sign = lengths_drift(lines[-1], lines[:-1])
    assert sign is not None and "dr_grpo" in sign.fix


def doing(share: Callable[[int], float], success: float, **facts: Any) -> list[Line]:
    lines = []
    for step in range(16):
        rewards = [0.0] * 16
        line: Line = {"step": step, "success": success, "success_name": "improved", "rewards": rewards, "metrics": {}}
        for name, value in facts.items():
            made = value(share(step))
            line |= {name: made} if name != "metrics" else {"metrics": made}
        lines.append(line)
    return lines


def late(step: int) -> float:
    return 0.1 if step < 6 else 0.95


def test_E11_each_way_of_doing_nothing_is_named() -> None:
    idle = doing(late, 0.0, metrics=lambda share: {"idle": share})
    sign = as_good_as_doing_nothing(idle[-1], idle[:-1])
    assert sign is not None and "submits the unchanged starter file" in sign.seen and "15 of 16 episodes" in sign.seen
    answer = doing(late, 0.1, one_answer=lambda share: {"share": share, "tasks": 4, "text": "#### 7"})
    sign = as_good_as_doing_nothing(answer[-1], answer[:-1])
    assert sign is not None and "reply '#### 7'" in sign.seen
    cheat = doing(late, 0.0, like=lambda share: {"cheat": {"first": 0.1, "last": share}})
    sign = as_good_as_doing_nothing(cheat[-1], cheat[:-1])
    assert sign is not None and "end with the score of cheat" in sign.seen


def test_E11_is_silent_where_it_was_so_from_the_start_or_where_success_comes() -> None:
    """A reward that is seldom earned looks like doing nothing at first; one good answer to all tasks is no collapse."""
    for lines in (
        doing(lambda step: 0.97, 0.0, like=lambda share: {"noop": {"first": 0.97, "last": share}}),
        doing(late, 0.6, one_answer=lambda share: {"share": share, "tasks": 4, "text": "submit"}),
        doing(late, 0.1, like=lambda share: {"noop": {"first": 0.1, "last": share}}),
        doing(lambda step: 0.5, 0.0, metrics=lambda share: {"idle": share}),
    ):
        assert raised(as_good_as_doing_nothing, lines) is None


def test_chance_is_not_called_a_payer() -> None:
    """Two components that do not change, over five and five steps of 32 episodes: one of them always grew a little."""
    rng = random.Random(0)

    def five() -> dict[str, list[float]]:
        return {n: [0.25 * sum(rng.random() < 0.5 for _ in range(32)) / 32 for _ in range(5)] for n in ("a", "b")}

    named = sum(find_reward_source(five(), five(), {"correct"}) is not None for _ in range(400))
    assert named <= 4
    assert find_reward_source({"a": [0.0, 0.01, 0.0]}, {"a": [0.09, 0.1, 0.1]}, {"correct"}) is not None
    assert find_reward_source({"correct": [0.0, 0.01, 0.0]}, {"correct": [0.9, 0.9, 0.8]}, {"correct"}) is None
    assert find_reward_source({"idle": [-0.5, -0.4, -0.5]}, {"idle": [-0.1, 0.0, 0.0]}, {"improved"}) is None  # a price


def test_the_corrected_line_never_pays_for_nothing() -> None:
    source = RewardSource("headroom", -0.68, -0.23)
    line = corrected(source, {"mlgym": {"headroom": 1.0, "idle": 1.0}}, {"mlgym": "improved"})
    assert "rewards" not in line and "only together with improved" in line
    line = corrected(RewardSource("format", 0.0, 0.1), {"gsm8k": {"correct": 1.0, "format": 0.1}}, {"gsm8k": "correct"})
    assert line.endswith("rewards = { correct = 1.0 }")


def test_success_is_a_share_whatever_its_name() -> None:
    assert is_share("success") and is_share("correct") and not is_share("reward")
