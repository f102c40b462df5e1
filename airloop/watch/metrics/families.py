"""Results of each family of tasks by itself: the mean over a mixture hides which of them is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airloop.success import METRIC, success_in
from airloop.types import Trajectory

# Shown beside success and reward where an environment measures them: the share of episodes that beat the baseline, and
# how much of the way from the baseline to the best known score they went; answers that were right, wholly or in part,
# and what was found of the documents they rest on.
SHARES = ("improved", "headroom", "passed", "correct", "f1", "recall")


def families(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    found: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        found.setdefault(trajectory.task.curve, []).append(trajectory)
    return dict(sorted(found.items()))


def by_family(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Of each family: how many episodes, their success, their mean reward and the SHARES that were measured."""
    return {name: _figures(members) for name, members in families(trajectories).items()}


def _figures(members: Sequence[Trajectory]) -> dict[str, float]:
    figures: dict[str, float] = {"episodes": len(members)}
    if known := [t.metrics[METRIC] for t in members if METRIC in t.metrics]:
        figures[METRIC] = _mean(known)
    figures["reward"] = _mean([t.reward for t in members])
    for name in SHARES:
        measured = [{**t.rewards, **t.metrics}[name] for t in members if name in t.metrics or name in t.rewards]
        if measured:
            figures[name] = _mean(measured)
    return figures


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def pooled(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of several steps as those of one: each weighs by its episodes."""
    figures: dict[str, float] = {"episodes": sum(part["episodes"] for part in parts)}
    for name in (METRIC, "reward", *SHARES):
        having = [part for part in parts if name in part]
        if having:
            episodes = sum(part["episodes"] for part in having)
            figures[name] = sum(part[name] * part["episodes"] for part in having) / episodes
    return figures


def one_line(figures: Mapping[str, Mapping[str, float]], said: object = None) -> str:
    """`blotto improved 25%, reward 0.120 (8)   titanic improved 50%, reward 0.310 (8, headroom 12%)`; `said`: what
    success is called in the run."""
    return "   ".join(f"{name} {_short(row, said)}" for name, row in figures.items())


def _short(row: Mapping[str, float], said: object) -> str:
    if said in (None, METRIC):  # a mixture: a family's success is a copy of one of its shares, as a rule
        said = next((n for n in SHARES if row.get(n) == row.get(METRIC)), None)
    name, value = success_in(row, said) or ("", 0.0)
    counts = [f"{row['episodes']:.0f}", *(f"{n} {row[n]:.0%}" for n in SHARES if n in row and n != name)]
    first = f"{name} {value:.0%}, " if name else ""
    return f"{first}reward {row['reward']:.3f} ({', '.join(counts)})"


def table(columns: Mapping[str, Mapping[str, Mapping[str, float]]], said: object = None) -> str:
    """A row per family; for each titled column its success, reward, episodes and shares, – where it has none."""
    names = sorted({name for column in columns.values() for name in column})
    rows = [["", *columns]]
    for name in names:
        rows.append([name, *(_short(column[name], said) if name in column else "–" for column in columns.values())])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join("  " + line.rstrip() for line in lines)


def first_and_last(steps: Sequence[Mapping[str, Any]], count: int = 3) -> dict[str, dict[str, dict[str, float]]]:
    """Two columns for table(): each family's first and last `count` steps in which it took part."""
    history: dict[str, list[Mapping[str, float]]] = {}
    for step in steps:
        for name, row in step.get("task", {}).items():
            history.setdefault(name, []).append(row)
    return {
        f"first {count} steps of each": {name: pooled(rows[:count]) for name, rows in history.items()},
        f"last {count} steps of each": {name: pooled(rows[-count:]) for name, rows in history.items()},
    }
