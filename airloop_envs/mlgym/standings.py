"""Published agents and evaluations of ours on the same tasks of a checkout, by the same statistics.

Two scores of every run or episode are compared: the best of all that was evaluated in it, and what was handed in. Of
each the best over the runs is shown, and the mean with its standard error over those that have a score.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.runs.run import read_trajectories
from airloop.types import Trajectory
from airloop_envs.mlgym.checkout import load_checkout, load_task
from airloop_envs.mlgym.library import builtin_keys
from airloop_envs.mlgym.published import TRAJECTORIES, Attempt, attempt, best_of, folders, read_run
from airloop_envs.mlgym.spec import TaskSpec, Yardstick

OF_A_RUN: tuple[str, ...] = ("before", "after")


@dataclass(frozen=True)
class Figure:
    """Of the runs that have such a score."""

    n: int
    best: float
    mean: float
    error: float | None  # the mean's standard error; None: of one run


@dataclass(frozen=True)
class Standing:
    agent: str
    ours: bool
    runs: int
    best: Figure | None  # the best of each run
    final: Figure | None  # what was handed in
    withheld: int  # runs with a score that cannot be
    unknown: int  # runs of which nobody wrote down what was handed in


@dataclass(frozen=True)
class Standings:
    task: str
    metric: str
    direction: str
    baseline: float | None
    reference: float | None
    is_optimum: bool
    noise: float
    rows: tuple[Standing, ...]
    notes: tuple[str, ...]


def standings(root: Path, names: Sequence[str], evaluations: Sequence[str]) -> list[Standings]:
    """Of the named tasks, or of all that air has too. AirError if there is nothing to show."""
    ours = {label: read_trajectories(place) for name in evaluations for label, place in _places(name)}
    if names:
        specs = [load_task(root, name) for name in names]
    else:
        specs = [spec for spec in load_checkout(root) if spec.key in builtin_keys() and spec.yardstick.metric]
    runs = folders(root, specs)
    found = [_standings(spec, runs.get(spec.key, ()), ours) for spec in specs]
    shown = [table for table in found if table.rows or table.notes]
    if not shown:
        raise AirError(
            f"{root} has no published runs of {', '.join(names) or 'these tasks'}, and none of ours was given.",
            f"MLGym ships them in {TRAJECTORIES}/; name a checkout that has that folder, or add --with RUN.",
        )
    return shown


def _standings(spec: TaskSpec, runs: Sequence[Path], ours: Mapping[str, Sequence[Trajectory]]) -> Standings:
    stick, notes = spec.yardstick, []
    by_agent: dict[str, list[Attempt]] = {}
    for run in (read_run(folder, spec) for folder in runs):
        by_agent.setdefault(run.agent, []).append(run.attempt)
    rows = [_standing(agent, False, attempts, stick) for agent, attempts in by_agent.items()]
    rows.sort(key=lambda row: _order(row, stick))
    for label, episodes in ours.items():
        of_task = [t for t in episodes if t.task.payload.get("task") == spec.key]
        same = [t for t in of_task if _is_same_task(t, stick)]
        if len(same) < len(of_task):
            notes.append(
                f"{label}: {len(of_task) - len(same)} episodes are of air's own {spec.key}, which is another task; "
                "evaluate in the checkout (air eval … --env mlgym --arg mlgym_root=DIR)."
            )
        if same:
            rows.append(_standing(label, True, [_our_attempt(t, stick) for t in same], stick))
    return Standings(
        spec.key, stick.metric, stick.direction, stick.baseline, stick.reference, stick.optimum, stick.noise,
        tuple(rows), tuple(notes),
    )  # fmt: skip


def _order(row: Standing, stick: Yardstick) -> tuple[bool, float, str]:
    """The best first; who has no score last."""
    best = row.best.best if row.best else 0.0
    return row.best is None, -best if stick.direction == "up" else best, row.agent


def _standing(agent: str, ours: bool, attempts: Sequence[Attempt], stick: Yardstick) -> Standing:
    return Standing(
        agent=agent,
        ours=ours,
        runs=len(attempts),
        best=_figure([a.best for a in attempts if a.best is not None], stick),
        final=_figure([a.final for a in attempts if a.final is not None], stick),
        withheld=sum(a.withheld for a in attempts),
        unknown=sum(not a.final_known for a in attempts),
    )


def _figure(scores: Sequence[float], stick: Yardstick) -> Figure | None:
    best = best_of(stick, scores)
    if best is None:
        return None
    error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
    return Figure(len(scores), best, statistics.fmean(scores), error)


# --- ours -------------------------------------------------------------------------------------------------


def _places(name: str) -> Iterator[tuple[str, Path]]:
    """Folders of episodes by what they are called: an evaluation, one of a run, or a run's before and after."""
    path = Path(name).expanduser()
    if (path / "evaluation.json").is_file():
        yield name, path / "episodes"
        return
    run, words = name, OF_A_RUN
    if not (path / "config.toml").is_file():
        run, _, word = name.rpartition(":")
        path, words = Path(run).expanduser(), (word,)
    there = [word for word in words if run and word and (path / "evaluations" / word).is_dir()]
    if not there:
        raise AirError(
            f"{name} is neither an evaluation nor a run that has one.",
            "name a directory that `air eval` or `air train` made, or RUN:step_0010.",
        )
    yield from ((f"{run}:{word}", path / "evaluations" / word) for word in there)


def _is_same_task(episode: Trajectory, stick: Yardstick) -> bool:
    """A checkout's task and ours share a name, and are told apart by their baselines."""
    baseline = episode.metrics.get("baseline")
    return stick.baseline is None or baseline is None or math.isclose(baseline, stick.baseline, rel_tol=1e-9)


def _our_attempt(episode: Trajectory, stick: Yardstick) -> Attempt:
    """Scores as grading gave them, never as a text shows them that an agent may have printed."""
    found = episode.metrics
    if found.get("too_good"):
        return Attempt(None, None, withheld=True)
    final = found.get("final_score", found.get("score") if "best_score" not in found else None)
    best = [found[name] for name in ("best_score", "score") if name in found]
    return attempt(stick, best, final)


# --- as text ----------------------------------------------------------------------------------------------


def as_json(tables: Sequence[Standings]) -> list[dict[str, Any]]:
    return [asdict(table) for table in tables]


def format_standings(tables: Sequence[Standings]) -> str:
    return "\n\n".join(_format(table) for table in tables)


def _format(table: Standings) -> str:
    arrow = "↑" if table.direction == "up" else "↓"
    known = [f"baseline {table.baseline:.5g}"] if table.baseline is not None else []
    if table.reference is not None:
        known.append(f"{'known optimum' if table.is_optimum else 'reference'} {table.reference:.5g}")
    known += [f"standard error of one evaluation {table.noise:g}"] if table.noise else []
    lines = [f"### {table.task}: {table.metric} {arrow}" + (f" ({', '.join(known)})" if known else ""), ""]
    lines += ["| agent | runs | best of a run: best | mean ± SE (n) | handed in: best | mean ± SE (n) |"]
    lines += ["|" + "---|" * 6]
    for row in table.rows:
        name = f"**{row.agent}**" if row.ours else row.agent
        lines.append(f"| {name} | {row.runs} | {_cells(row.best)} | {_cells(row.final)} |")
    for row in table.rows:
        if row.withheld:
            lines += ["", f"{row.agent}: {row.withheld} of {row.runs} runs withheld, with a score that cannot be."]
        if row.unknown:
            lines += ["", f"{row.agent}: of {row.unknown} of {row.runs} runs nobody wrote down what was handed in."]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines)


def _cells(figure: Figure | None) -> str:
    if figure is None:
        return "– | –"
    error = f" ± {figure.error:.2g}" if figure.error is not None else ""
    return f"{figure.best:.4g} | {figure.mean:.4g}{error} ({figure.n})"
