"""What a person sees: calm lines, and the reason when a step taught nothing."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from air.watch.display import Display, sparkline
from air.watch.summary import text_plot


def metrics(step: int, reward: float | None, silent: int) -> dict[str, Any]:
    return {
        "step": step,
        "reward": reward,
        "components": {"correct": 0.0},
        "turn_components": {},
        "metrics": {},
        "groups_without_signal": silent,
        "rollout": {"groups": 4},
        "learner": {"grad_norm": 0.0},
        "times": {"sampling": 1.0, "training": 1.0},
    }


def test_E1_a_step_without_signal_says_why_once_until_signal_returns() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200))
    for step, silent in enumerate([0, 4, 4, 1, 4]):
        display.step(metrics(step, 0.5, silent))
    display.step(metrics(5, None, 0))
    text = out.getvalue()
    assert text.count("no signal: in all 4 groups every episode scored the same") == 2
    assert "rollouts_per_example" in text and "{'correct': 0.0}" in text
    assert text.splitlines()[-1].split()[:2] == ["6", "–"]


def test_plots_take_constant_and_single_values() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁" and sparkline([]) == ""
    assert text_plot([2.0]).count("●") == 1
