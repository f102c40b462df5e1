"""A run as the page shows it: its figures, curves, ledger, evaluations, alarms and config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airloop.runs.damaged import Reader, interval_of, items, number, table, whole, words
from airloop.runs.lineage import find_parent
from airloop.runs.results import config_diff, flat_config, run_results
from airloop.success import NAME, success_in
from airloop.watch.metrics.ledger import COLUMNS
from airloop_view.curves import curves
from airloop_view.folder import Collection
from airloop_view.index import WATCHED
from airloop_view.weight import too_heavy

LONGEST_TEXT = 4_000  # of an alarm's or a check's sentence
MOST_LINES = 500  # alarms or evaluations of one run: the newest
INTERVAL = ("mean", "low", "high")


def results_of(collection: Collection) -> dict[str, Any]:
    closed = not_read(collection.path)
    if collection.kind == "run" and not closed:
        return run_results(collection.path)
    found = run_results(Path("/nonexistent")) if closed else run_results(collection.path)
    found |= {"name": words(collection.path.name), "path": words(str(collection.path)), "problems": []}
    if closed:
        return {**found, "problems": [closed]}
    return {**found, **(_evaluation(collection.path) if collection.kind == "evaluation" else {"task": "episodes"})}


def not_read(path: Path) -> str:
    """Why the small files of a run or an evaluation are left alone, or nothing."""
    if any((path / name).is_symlink() for name in WATCHED):
        return "files of it are links, which are not followed"
    return too_heavy(path, WATCHED)


def _evaluation(path: Path) -> dict[str, Any]:
    """The figures of an `air eval`, in a run's columns."""
    reader = Reader(path)
    report = reader.json("evaluation.json")
    means = table(report.get("means"))
    reward = interval_of(means.get("reward"))
    success_name, success = success_in(means, report.get(NAME)) or ("", None)
    interval = interval_of(success)
    return {
        "task": words(report.get("split")) or "",
        "env": sorted(map(str, table(report.get("task")))),
        "model": words(report.get("model")) or words(report.get("agent")),
        "status": "completed" if report.get("finished") is True else "stopped",
        "why": "" if report.get("finished") is True else "not finished: repeat the command with the same --out",
        "seconds": number(report.get("seconds")),
        "cost": number(report.get("cost")),
        "success_name": words(success_name) or None,
        "success_last": interval and interval["mean"],
        "eval_success_after": interval,
        "eval_after": reward,
        "reward_last": reward and reward["mean"],
        "problems": reader.problems,
    }


def run_page(collection: Collection, known: dict[str, Collection], facets: dict[str, Any]) -> dict[str, Any]:
    results = results_of(collection)
    reader = Reader(collection.path)
    inside = collection.kind == "run" and not not_read(collection.path)
    config = flat_config(reader.toml("config.toml")) if inside else {}
    lines = reader.lines("metrics.jsonl") if inside else []
    steps = _steps(lines)
    parent = _parent(collection, known) if inside else None
    return {
        "results": results,
        "kind": collection.kind,
        "config": [[key, _shown(value)] for key, value in config.items()],
        "config_diff": config_diff(collection.path, parent.path) if parent else None,
        "parent": parent.id if parent else None,
        "steps": sorted(steps),
        "curves": curves([steps[s] for s in sorted(steps)]),
        "ledger": _ledger([steps[s] for s in sorted(steps)]),
        "evaluations": _evaluations(collection, lines),
        "alarms": alarms(reader) if inside else [],
        "doctor": _doctor(reader) if inside else None,
        "facets": facets,
    }


def _steps(lines: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The last line of each step: a resumed run repeats some."""
    return {
        step: line
        for line in lines
        if line.get("kind") == "train" and (step := whole(line.get("step"))) is not None and step >= 0
    }


def _parent(collection: Collection, known: dict[str, Collection]) -> Collection | None:
    """The run's parent, if it lies in the viewed directory too. By its place: a name may be there twice."""
    found = find_parent(collection.path)
    runs = (c for c in known.values() if c.kind == "run" and c.path != collection.path and not not_read(c.path))
    return next((c for c in runs if c.path == found), None)


def _ledger(steps: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [(step, table(step.get("ledger"))) for step in steps if isinstance(step.get("ledger"), dict)]
    return {
        "x": [whole(step["step"]) + 1 for step, _ in rows],  # type: ignore[operator]
        "columns": {name: [number(ledger.get(name)) for _, ledger in rows] for name in COLUMNS},
    }


def _evaluations(collection: Collection, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those within a run, or the one that an `air eval` made."""
    if collection.kind != "evaluation" or not_read(collection.path):
        return [_evaluation_line(line) for line in lines if line.get("kind") == "eval"][-MOST_LINES:]
    report = Reader(collection.path).json("evaluation.json")
    lost = len(items(report.get("lost")))
    return [_evaluation_line({**table(report.get("means")), **report, "name": collection.path.name, "lost": lost})]


def _evaluation_line(line: dict[str, Any]) -> dict[str, Any]:
    intervals = {
        name: {k: number(value.get(k)) for k in INTERVAL}
        for name, value in line.items()
        if isinstance(value, dict) and "mean" in value
    }
    success = success_in(intervals, line.get(NAME))
    return {
        "name": words(line.get("name")) or "",
        "step": whole(line.get("step")),
        "split": words(line.get("split")) or "",
        "episodes": whole(line.get("episodes")),
        "lost": whole(line.get("lost")),
        "success_name": words(success[0]) if success else None,
        "success": {k: None for k in INTERVAL} if success is None else success[1],
        "reward": {k: None for k in INTERVAL},
        **{name: row for name, row in intervals.items() if name != "success"},
        "task": {str(k): {n: number(v) for n, v in table(row).items()} for k, row in table(line.get("task")).items()},
    }


def alarms(reader: Reader) -> list[dict[str, Any]]:
    names = ("id", "name", "severity", "seen", "why", "fix", "event")
    return [
        {
            **{name: (words(line.get(name)) or "")[:LONGEST_TEXT] for name in names},
            "step": whole(line.get("step")),
            "time": number(line.get("time")),
        }
        for line in reader.lines("alarms.jsonl")[-MOST_LINES:]
    ]


def alarms_at(path: Path, step: int) -> list[dict[str, Any]]:
    """Those that were up at a step: raised by then, and not cleared before."""
    up: dict[str, dict[str, Any]] = {}
    for alarm in alarms(Reader(path)) if not not_read(path) else []:
        if alarm["step"] is None or alarm["step"] > step:
            continue
        if alarm["event"] == "raised":
            up.setdefault(alarm["id"], alarm)
        else:
            up.pop(alarm["id"], None)
    return list(up.values())


def _doctor(reader: Reader) -> list[dict[str, Any]] | None:
    """What the doctor found before the first step: a row per check, with the sentences of what it saw."""
    if not (reader.path / "doctor.json").is_file():
        return None
    rows = []
    for check in map(table, items(reader.json("doctor.json").get("checks"))):
        findings = [table(f) for f in items(check.get("findings"))]
        said = {name: [_shown(f.get(name)) for f in findings if f.get(name)] for name in ("seen", "why", "fix")}
        rows.append(
            {
                "id": ", ".join(map(_shown, items(check.get("ids")))),
                **{name: _shown(check.get(name) or "") for name in ("name", "title", "verdict", "not_done")},
                **{name: " ".join(texts) for name, texts in said.items()},
                "seconds": number(check.get("seconds")),
            }
        )
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)[:LONGEST_TEXT]
