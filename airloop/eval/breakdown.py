"""An evaluation kind by kind: share passed, reward, calls and tokens, where an environment's tasks have kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airloop.success import METRIC
from airloop.types import Trajectory

METRICS = (METRIC, "passed", "calls")  # shown beside the reward where an environment measures them
ALL = "all"


def by_kind(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """A row for all, one per family and one per kind (`kind` in a task's payload), families and kinds in order of
    their names. Empty where no task has a kind."""
    kinds: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        family, kind = trajectory.task.curve, trajectory.task.payload.get("kind")
        if isinstance(kind, str):
            for key in ((ALL, ""), (family, ""), (family, kind)):
                kinds.setdefault(key, []).append(trajectory)
    order = sorted(kinds, key=lambda key: (key[0] != ALL, key))
    return [{"family": family, "kind": kind, **_figures(kinds[family, kind])} for family, kind in order]


def _figures(members: Sequence[Trajectory]) -> dict[str, float]:
    figures = {"episodes": len(members), "reward": _mean([t.reward for t in members])}
    for name in METRICS:
        if measured := [t.metrics[name] for t in members if name in t.metrics]:
            figures[name] = _mean(measured)
    if any(tokens := [_tokens(t) for t in members]):
        figures["tokens"] = _mean(tokens)
    return figures


def _tokens(trajectory: Trajectory) -> float:
    """That the agent wrote: sampled here, or counted by a server."""
    return trajectory.sampled_tokens or trajectory.metrics.get("tokens_out", 0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def kind_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """`hard  table_spans   8   75.0%   0.712   1.2   143`; – where nothing was measured."""
    forms = {"episodes": "{:.0f}", METRIC: "{:.1%}", "reward": "{:.3f}", "calls": "{:.1f}", "tokens": "{:.0f}"}
    wide = max(len(row["kind"]) for row in rows)
    lines = [f"  {'':8s} {'':{wide}s}" + "".join(f"{name:>10s}" for name in forms)]
    for row in rows:
        cells = [form.format(row[name]) if name in row else "–" for name, form in forms.items()]
        family = row["family"] if not row["kind"] else ""
        lines.append(f"  {family:8s} {row['kind']:{wide}s}" + "".join(f"{cell:>10s}" for cell in cells))
    return "\n".join(lines)
