"""A run's metrics as curves: every number of metrics.jsonl has one, in the group where a person looks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from airloop.runs.damaged import number, table, whole, words
from airloop.success import common_name
from airloop.watch.metrics.families import SHARES
from airloop.watch.metrics.names import describe

# The first that fits: how a metric's flat name begins, or its whole, and the group it is drawn in.
GROUPS = (
    ("success", "success"),
    ("reward", "reward"),
    ("components/", "reward"),
    ("turn_components/", "reward"),
    ("best/", "reward"),
    ("task/", "task"),
    ("rollout/ended_", "endings"),
    ("metrics/sampled_tokens", "lengths"),
    ("metrics/turns", "lengths"),
    ("metrics/length_stops", "lengths"),
    *((f"metrics/{name}", "success") for name in SHARES),
    ("learner/entropy", "entropy"),
    ("learner/kl", "kl"),
    ("learner/grad", "gradient"),
    ("learner/update_ratio", "gradient"),
    ("learner/weights_changed", "gradient"),
    ("learner/logprob_gap", "gap"),
    ("learner/importance", "gap"),
    ("learner/tokens_per_s", "throughput"),
    ("tokens_per_s", "throughput"),
    ("memory/", "memory"),
    ("times/", "times"),
)
LEFT_OUT = ("ledger/", "plan/", "worst/", "step")  # drawn as areas, the same at every step, or no number over time
MOST_CURVES = 400
FIRST = ("success", "reward")
MOST_STEPS = 5_000  # of their curves, which the slider takes each step's from
MOST_POINTS = 1_500  # of one curve: more than a screen has columns; the rest are left out evenly


def curves(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [dict(_flat(step)) for step in steps]
    for row, step in zip(rows, steps, strict=True):
        rate = _sampled_per_second(step)
        if rate is not None:
            row["tokens_per_s"] = rate
    names = list(dict.fromkeys(name for row in rows for name in row if not name.startswith(LEFT_OUT)))
    places = _evenly(len(rows), _points(len(names)))
    every = _evenly(len(rows), MOST_STEPS)
    numbers = [(whole(step.get("step")) or 0) + 1 for step in steps]
    shown = sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))[:MOST_CURVES]
    said = words(common_name(steps))
    labels = Counter((group_of(name), _label(name)) for name in shown)
    return [
        {
            "name": name,
            "group": group_of(name),
            **described(name, labels[group_of(name), _label(name)] > 1),
            **({"label": said} if name == "success" and said else {}),
            "x": [numbers[i] for i in kept],
            "y": [_short(rows[i].get(name)) for i in kept],
        }
        for name in shown
        for kept in [every if name in FIRST else places]
    ]


def _short(value: float | None) -> float | None:
    """Six digits are more than a screen shows."""
    return None if value is None else float(f"{value:.6g}")


def _points(names: int) -> int:
    """So that all curves together stay far below what an answer may hold."""
    return max(50, min(MOST_POINTS, 60_000 // max(1, min(names, MOST_CURVES))))


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _flat(tree: dict[str, Any], at: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Numbers by their path, as every sink names them: `learner/grad_norm`."""
    for key, value in tree.items():
        if isinstance(value, dict) and depth < 6:
            yield from _flat(value, f"{at}{key}/", depth + 1)
        elif (found := number(value)) is not None:
            yield f"{at}{key}", found


def group_of(name: str) -> str:
    return next((group for start, group in GROUPS if name.startswith(start)), "other")


def described(name: str, ambiguous: bool = False) -> dict[str, str]:
    """A short label for a chart's head, the sentence that docs/metrics.md has, and the unit."""
    found = describe(f"train/{name}")
    if name == "tokens_per_s":
        return {
            "label": "sampled tokens per second",
            "text": "Sampled tokens over the step's time.",
            "unit": "tokens/s",
        }
    label = f"{name.partition('/')[0]}: {_label(name)}" if ambiguous else _label(name)
    return {"label": label, "text": found.text if found else "", "unit": found.unit if found else ""}


def _label(name: str) -> str:
    first, *rest = name.split("/")
    if not rest:
        return first.replace("_", " ")
    words = [part.replace("_", " ") for part in rest]
    return f"{words[0]}: {' '.join(words[1:])}" if len(words) > 1 else words[0].removeprefix("ended ")


def _sampled_per_second(step: dict[str, Any]) -> float | None:
    """Sampled tokens over the whole step's time, as the table of runs has it."""
    tokens = number(table(step.get("ledger")).get("tokens"))
    seconds = [number(table(step.get("times")).get(name)) for name in ("sampling", "training", "sync")]
    total = sum(s for s in seconds if s is not None)
    return tokens / total if tokens is not None and total > 0 else None
