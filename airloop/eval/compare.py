"""A comparison is made on the same rows, mode and sampling, with an interval, or not at all (E6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.environments import load_environments
from airloop.envs.base import Environment, find_environment
from airloop.errors import AirError
from airloop.eval.conditions import Conditions, conditions, differences, flags_for
from airloop.files import parse_json
from airloop.rewards import with_run_rewards
from airloop.runs.env_names import names_by_id, with_run_name
from airloop.runs.run import Run, read_trajectories
from airloop.stats.intervals import Interval, difference, mean_interval
from airloop.success import METRIC, NAME, in_order
from airloop.types import Trajectory
from airloop.watch.metrics.rows import RowKey, passes, per_task, scored_rows, value, value_names

NAMED = 5  # differences that a refusal lists
KINDS = ("kind", "dataset")  # of a task's payload, to look at groups of tasks


@dataclass(frozen=True)
class Side:
    """One evaluation, read from disk."""

    label: str
    conditions: Conditions
    planned: frozenset[RowKey]
    scored: Mapping[RowKey, Trajectory]
    split: str = ""
    air_version: str = ""
    success: str | None = None  # what its success is called; None: as older evaluations, which do not say

    @property
    def lost(self) -> int:
        return len(self.planned) - len(self.scored)


@dataclass(frozen=True)
class Line:
    """One quantity on both sides; `gain` is B less A, paired."""

    a: Interval
    b: Interval
    gain: Interval

    @property
    def verdict(self) -> str:
        return f"B is {self.gain.word}" if self.gain.word in ("higher", "lower") else self.gain.word


@dataclass(frozen=True)
class Comparison:
    a: str
    b: str
    rows: int
    left_out: int  # rows that only one side has (--common)
    lost: int  # rows that infrastructure trouble left without a score on either side
    overall: Mapping[str, Line]  # success first, where there is one, then the reward
    groups: Mapping[str, Mapping[str, Mapping[str, Line]]]  # by "kind", its values, the quantities
    notes: Sequence[str] = field(default=())

    @property
    def first(self) -> str:
        """What is compared before anything else: success, or the reward."""
        return next(iter(self.overall))


# --- reading ------------------------------------------------------------------------------------------------


def compare_named(names: Sequence[str], common: bool = False) -> Comparison:
    """Two evaluations by name, or before and after of one run."""
    if len(names) == 1 and (Path(names[0]) / "config.toml").is_file():
        names = [f"{names[0]}:before", f"{names[0]}:after"]
    if len(names) == 1 and ":" not in names[0] and not Path(names[0]).expanduser().exists():
        raise AirError(
            f"There is no run {names[0]}.",
            "name a directory that `air train` made; `air log list` shows those there are.",
        )
    if len(names) != 2:
        raise AirError(
            f"A comparison needs two evaluations; given: {' '.join(names) or 'none'}.",
            "write `air compare A B`, or `air compare RUN` for before and after of a run.",
        )
    return compare(read_side(names[0]), read_side(names[1]), common)


def read_side(name: str) -> Side:
    path = Path(name).expanduser()
    if (path / "evaluation.json").is_file():
        return _read_evaluation(name, path)
    if (path / "config.toml").is_file():
        raise AirError(
            f"{name} is a run with several evaluations: {', '.join(_evaluations(path)) or 'none yet'}.",
            f"name one of them: {name}:after",
        )
    before, colon, evaluation = name.rpartition(":")
    run = Path(before).expanduser()
    if not colon or not (run / "config.toml").is_file():
        raise AirError(
            f"{name} is neither an evaluation (no evaluation.json) nor one of a run.",
            "name a directory that `air eval` made, or RUN:before, RUN:after, RUN:step_0010.",
        )
    if evaluation not in _evaluations(run):
        known = ", ".join(_evaluations(run)) or "none yet"
        raise AirError(f"The run {before} has no evaluation {evaluation!r}.", f"it has: {known}.")
    return _read_run(name, run, evaluation)


def _evaluations(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "evaluations").glob("*") if p.is_dir())


def _read_evaluation(name: str, path: Path) -> Side:
    data = _saved(name, path)
    if not data["finished"]:
        raise AirError(
            f"The evaluation {name} was stopped before its end.",
            f"finish it: repeat its command with --out {path}.",
        )
    names = names_by_id((env["id"], name) for name, env in data["mode"].get("env", {}).items())
    scored, _ = scored_rows([with_run_name(t, names) for t in read_trajectories(path / "episodes")])
    planned = frozenset((names.get(row["env"], row["env"]), row["task"], row["seed"]) for row in data["rows"])
    made = Conditions(data["sampling"], data["mode"])
    kept = {key: t for key, t in scored.items() if key in planned}
    return Side(name, made, planned, kept, data["split"], data["air_version"], data.get(NAME))


def _saved(name: str, path: Path) -> dict[str, Any]:
    needed = {"finished", "rows", "sampling", "mode", "split", "air_version"}
    try:
        data = parse_json((path / "evaluation.json").read_text(encoding="utf-8"))
    except ValueError as error:
        data, reason = {}, str(error)
    else:
        missing = needed - {*data} if isinstance(data, dict) else needed
        reason = f"it lacks {', '.join(sorted(missing))}" if missing else ""
        if reason and isinstance(data, dict) and data.get("finished") is False:
            return data  # stopped before its end: said by who asks
    if reason:
        raise AirError(f"{name}/evaluation.json is damaged: {reason}.", "evaluate again, with another --out.")
    found: dict[str, Any] = data
    return found


def _read_run(name: str, path: Path, evaluation: str) -> Side:
    run = Run.open(path)
    temperature = run.config.orchestrator.eval.temperature
    config = with_run_rewards(run.config, run)
    envs = load_environments(config)
    made = conditions(config, envs, temperature, samples=True, policy=True)
    scored, lost = scored_rows(run.evaluation(evaluation))
    splits = {t.task.split for t in scored.values()}
    said = next((m[NAME] for m in reversed(run.metrics("eval")) if m.get(NAME)), None)
    return Side(name, made, frozenset({*scored, *lost}), scored, ", ".join(sorted(splits)), success=said)


# --- refusing -----------------------------------------------------------------------------------------------


def check_comparable(a: Side, b: Side, common: bool, excused: Callable[[str], bool] = lambda what: False) -> None:
    """Refuses unequal conditions, and unequal rows unless only the common ones are wanted."""
    problems, fixes = [], []
    found = differences(a.conditions, b.conditions, excused)
    if found:
        problems += [str(d) for d in found[:NAMED]]
        problems += [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        flags = flags_for(found, a.conditions)
        fixes.append(f"evaluate B under A's conditions: air eval … {flags}".rstrip())
    if not common and (unequal := _unequal_rows(a, b)):
        problems.append(unequal)
        split = f" --split {a.split}" if a.split and a.split != b.split else ""
        n = len({key[:2] for key in a.planned})
        rollouts = max(1, len(a.planned) // max(n, 1))
        fixes.append(f"evaluate B on A's rows: air eval …{split} --n {n} --rollouts {rollouts}")
        if _common(a, b):
            fixes.append(f"compare the {len(_common(a, b))} rows that both have: air compare A B --common")
    if problems:
        raise AirError(
            f"A ({a.label}) and B ({b.label}) were not measured alike, so their difference says nothing "
            f"about the agents: {'; '.join(problems)}.",
            "; or ".join(fixes),
        )


def _common(a: Side, b: Side) -> list[RowKey]:
    """Rows of both sides that are the same task in more than its name."""
    both = sorted(a.planned & b.planned)
    return [key for key in both if not _changed(a, b, key)]


def _changed(a: Side, b: Side, key: RowKey) -> list[str]:
    if key not in a.scored or key not in b.scored:
        return []
    one, two = (dict(side.scored[key].task.payload) for side in (a, b))
    return sorted(k for k in {*one, *two} if one.get(k) != two.get(k))


def _unequal_rows(a: Side, b: Side) -> str:
    both = a.planned & b.planned
    if len(both) != len(a.planned) or len(both) != len(b.planned):
        sides = {"A": a.planned - both, "B": b.planned - both}
        only = [(side, min(keys)) for side, keys in sides.items() if keys]
        examples = ", ".join(f"task {key[1]!r} with seed {key[2]} only in {side}" for side, key in only)
        counts = f"A has {len(a.planned)} rows, B has {len(b.planned)}"
        return f"{counts}, and {len(both)} are in both ({examples})"
    changed = [(key, names) for key in sorted(both) if (names := _changed(a, b, key))]
    if changed:
        key, names = changed[0]
        return f"{len(changed)} tasks were changed in between, such as {key[1]!r} in {', '.join(names)}"
    return ""


# --- comparing ----------------------------------------------------------------------------------------------


def compare(a: Side, b: Side, common: bool = False) -> Comparison:
    check_comparable(a, b, common)
    rows = _common(a, b)
    paired = [key for key in rows if key in a.scored and key in b.scored]
    if not paired:
        raise AirError(
            f"A ({a.label}) and B ({b.label}) have no scored row in common.",
            "evaluate both on the same split, --n and --rollouts.",
        )
    notes = []
    if a.air_version != b.air_version and a.air_version and b.air_version:
        notes.append(f"A was made with air {a.air_version}, B with air {b.air_version}")
    if a.conditions.sampling is None or b.conditions.sampling is None:
        notes.append("a scripted agent samples nothing, so sampling was not compared")
    overall = _lines(a, b, paired)
    # The copy called "success" is no measure of its own: evaluations of older versions lack it.
    if missing := ({*value_names(a.scored.values())} ^ {*value_names(b.scored.values())}) - {METRIC}:
        notes.append(f"only one side has {', '.join(sorted(missing))}")
    return Comparison(
        a.label,
        b.label,
        rows=len(paired),
        left_out=len(a.planned | b.planned) - len(rows),
        lost=len(rows) - len(paired),
        overall=overall,
        groups=_groups(a, b, paired),
        notes=notes,
    )


def _lines(a: Side, b: Side, keys: Sequence[RowKey]) -> dict[str, Line]:
    lines = {}
    names = value_names(a.scored[key] for key in keys)
    for name in in_order(names, a.success or b.success):
        pairs = [(key, value(a.scored[key], name), value(b.scored[key], name)) for key in keys]
        known = [(key, x, y) for key, x, y in pairs if x is not None and y is not None]
        if known:
            one, two = per_task((key, x) for key, x, _ in known), per_task((key, y) for key, _, y in known)
            share = passes(name, [*one, *two])
            lines[name] = Line(
                mean_interval(one, share=share), mean_interval(two, share=share), difference(two, one, share=share)
            )
    return lines


def _groups(a: Side, b: Side, keys: Sequence[RowKey]) -> dict[str, dict[str, dict[str, Line]]]:
    """By environment if there are several, by family (a research task, a level, a number of hops), and by what the
    tasks' payloads call their kind. Two that divide the rows alike are shown once."""
    found: dict[str, dict[str, dict[str, Line]]] = {}
    seen: list[list[list[RowKey]]] = []
    for what in ("env", "family", *KINDS):
        members: dict[str, list[RowKey]] = {}
        for key in keys:
            if isinstance(group := _group(a.scored[key], what), str):
                members.setdefault(group, []).append(key)
        if len(members) > 1 and sorted(members.values()) not in seen:
            seen.append(sorted(members.values()))
            name = _family_name(keys) if what == "family" else what
            found[name] = {group: _lines(a, b, members[group]) for group in sorted(members)}
    return found


def _group(trajectory: Trajectory, what: str) -> Any:
    task = trajectory.task
    return {"env": task.env, "family": task.curve}.get(what, task.payload.get(what))


def _family_name(keys: Sequence[RowKey]) -> str:
    envs = {key[0] for key in keys}
    if len(envs) != 1:
        return "task"
    try:
        return find_environment(envs.pop())().family_label
    except (AirError, ImportError):  # not installed where its results are looked at
        return Environment.family_label


# --- showing ------------------------------------------------------------------------------------------------


def as_json(comparison: Comparison) -> dict[str, Any]:
    def lines(given: Mapping[str, Line]) -> dict[str, Any]:
        return {
            name: {
                "a": line.a.as_json(),
                "b": line.b.as_json(),
                "difference": line.gain.as_json(),
                "verdict": line.verdict,
            }
            for name, line in given.items()
        }

    groups = {what: {name: lines(g) for name, g in of.items()} for what, of in comparison.groups.items()}
    overall = lines(comparison.overall)
    return {
        **vars(comparison),
        "first": comparison.first,
        "notes": list(comparison.notes),
        "overall": overall,
        "groups": groups,
    }


def format_comparison(comparison: Comparison) -> str:
    c = comparison
    left = f"; {c.left_out} rows that only one side has were left out" if c.left_out else ""
    lost = f"; {c.lost} rows lost to infrastructure trouble were left out" if c.lost else ""
    lines = [
        f"A  {c.a}",
        f"B  {c.b}",
        f"{c.rows} rows, the same tasks and seeds under the same conditions{left}{lost}",
        *(f"note: {note}" for note in c.notes),
        "",
        f"{'':22s} {'A':>9s} {'B':>9s}   B − A, paired [95 %]",
        *(_format(name, line) for name, line in c.overall.items()),
    ]
    for what, groups in c.groups.items():
        for shown in dict.fromkeys((c.first, "reward")):
            lines += ["", f"{shown} by {what}"]
            lines += [_format(f"{name} ({g[shown].gain.n})", g[shown]) for name, g in groups.items() if shown in g]
    count = len(c.overall) + sum(len({c.first, "reward"}) * len(groups) for groups in c.groups.values())
    if count > 3:
        lines += [
            "",
            f"Of {count} such lines, up to one in twenty differs by chance: choose yours before you look.",
        ]
    return "\n".join(lines)


def _format(name: str, line: Line) -> str:
    return f"{name:22s} {line.a.mean:9.3f} {line.b.mean:9.3f}   {line.gain.signed:26s} {line.verdict}"
