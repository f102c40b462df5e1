"""The research tasks by name: ours and a checkout's, whether each can be run here, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airloop.sandbox.needs import missing_in_sandbox
from airloop_envs.mlgym import baselines
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.checkout import find_root, load_checkout
from airloop_envs.mlgym.imports import not_installed
from airloop_envs.mlgym.library import Library, builtin_keys
from airloop_envs.mlgym.spec import TaskSpec

SUBMISSIONS = {
    "CSVSubmissionTasks": "table",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "language model",
    "PythonSubmissionTasks": "code",
}


def catalogue(mlgym_root: str | None = None) -> list[dict[str, Any]]:
    """A row per task: the checkout's, if one is named, then ours. Nothing of a task is run."""
    root = find_root(mlgym_root)
    sandbox = [lack.what for lack in missing_in_sandbox(MlgymArgs().sandbox)]
    library = Library(MlgymArgs(source="builtin"))
    theirs = load_checkout(root) if root else []
    ours = [library.builtin(key) for key in builtin_keys()]
    keys = {spec.key for spec in theirs}
    rows = [describe(spec) for spec in theirs] + [describe(spec) | {"shadowed": spec.key in keys} for spec in ours]
    return [row | {"lacks": [*sandbox, *row["lacks"]]} for row in rows]


def describe(spec: TaskSpec) -> dict[str, Any]:
    stick = spec.yardstick
    missing = [dataset.missing for dataset in spec.datasets if dataset.missing]
    on_hub = any(dataset.missing and not dataset.is_local for dataset in spec.datasets)
    data = "none needed" if not spec.datasets else "here"
    if missing or _unprepared(spec):
        data = "on the hub" if on_hub else "missing"
    return {
        "key": spec.key,
        "id": spec.id,
        "name": spec.name,
        "source": "air" if spec.builtin else "checkout",
        "shadowed": False,  # a task of the checkout has the same name
        "entry_point": spec.entry_point,
        "submission": SUBMISSIONS[spec.entry_point],
        "data": data,
        "prepare": next((dataset.command for dataset in spec.datasets if dataset.command), ""),
        "get_data": missing or (list(spec.problems) if _unprepared(spec) else []),
        "metric": stick.metric,
        "direction": stick.direction if stick.metric else "",
        "baseline": baselines.known(spec),
        "reference": stick.reference,
        "how": stick.how,
        "noise": stick.noise,
        "runnable": spec.runnable,
        "lacks": [f"the Python module {name} is not installed" for name in not_installed(spec)],
        "warnings": list(spec.warnings),
        "problems": list(spec.problems),
    }


def _unprepared(spec: TaskSpec) -> bool:
    return spec.builtin and any(dataset.directory is None for dataset in spec.datasets)


def format_catalogue(rows: Sequence[Mapping[str, Any]]) -> str:
    width = max((len(row["key"]) for row in rows), default=4)
    head = f"{'task':{width}s}  {'from':8s}  {'hand in':14s}  {'data':11s}  {'metric':16s}  {'baseline':>9s}  "
    lines = [f"{head}{'reference':>9s}  state"]
    for row in rows:
        arrow = {"up": "↑", "down": "↓"}.get(row["direction"], "")
        metric = f"{row['metric']} {arrow}" if row["metric"] else "unknown"
        baseline = shown(row["baseline"]) if row["baseline"] is not None else "measured" if row["runnable"] else "–"
        lines.append(
            f"{row['key']:{width}s}  {row['source']:8s}  {row['submission']:14s}  {row['data']:11s}  {metric:16s}  "
            f"{baseline:>9s}  {shown(row['reference']):>9s}  {_state(row)}"
        )
    lines.append("↑ higher is better, ↓ lower; `measured`: by running it once. `air tasks check TASK` says more.")
    for lack in dict.fromkeys(lack for row in rows for lack in row["lacks"]):
        lines.append(f"! {lack.rstrip('.')}: {', '.join(row['key'] for row in rows if lack in row['lacks'])}")
    for row in rows:
        if row["prepare"]:
            lines.append(f"! the data of {row['key']} is made from the checkout's own files by `{row['prepare']}`")
    if any(row["shadowed"] for row in rows):
        lines.append("Where both have a task, the checkout's is used; args = { source = \"builtin\" } takes air's.")
    return "\n".join(lines)


def _state(row: Mapping[str, Any]) -> str:
    said = [_count(row["problems"], "problem")] if row["problems"] else []
    said += [_count(row["lacks"], "thing") + " missing"] if row["lacks"] else []
    said = said or ["ready"]
    said += [_count(row["warnings"], "warning")] if row["warnings"] else []
    said += ["the checkout's is used"] if row["shadowed"] else []
    return ", ".join(said)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"
