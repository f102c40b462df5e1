"""What MLGym's own agents reached, from the runs that a checkout ships: `trajectories/<benchmark>/<run>/`.

A run's folder is named `<agent>__<task>__…`. Its results.json has the score of everything that was evaluated, in order;
how the run ended, and so whether the last of them was handed in, is in its .traj file alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airloop.errors import AirError
from airloop.files import read_object
from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.spec import TaskSpec, Yardstick
from airloop_envs.mlgym.traj import read_recording

TRAJECTORIES = "trajectories"
RESULTS = "results.json"
PREFIX = "metagen-"  # of every agent's name there: the service it was called by


@dataclass(frozen=True)
class Attempt:
    """One run of theirs or one episode of ours, as far as its scores go."""

    best: float | None  # of everything that was scored in it
    final: float | None  # of what was handed in; None: nothing, or it has no score
    final_known: bool = True
    withheld: bool = False  # it showed a score that cannot be, so none of its scores counts


@dataclass(frozen=True)
class PublishedRun:
    agent: str
    task: str  # its key in the checkout
    attempt: Attempt
    folder: str


def folders(root: Path, tasks: Iterable[TaskSpec]) -> dict[str, list[Path]]:
    """The runs of each task that has any, by its key; of those whose folder does not name one there is nothing."""
    keys = {name: spec.key for spec in tasks for name in (spec.id, spec.key)}
    found: dict[str, list[Path]] = {}
    for file in sorted((root / TRAJECTORIES).glob(f"*/*/{RESULTS}")):
        parts = file.parent.name.split("__")
        if len(parts) > 1 and parts[1] in keys:
            found.setdefault(keys[parts[1]], []).append(file.parent)
    return found


def read_run(folder: Path, spec: TaskSpec) -> PublishedRun:
    """AirError if its results cannot be read."""
    listed = read_object(folder / RESULTS).get("agent")
    if not isinstance(listed, list):
        raise AirError(f"{folder / RESULTS} has no list `agent`.", "restore it in the checkout.")
    scores = [value for entry in listed if (value := _value(entry, spec.yardstick)) is not None]
    final, known = _final(folder, spec.yardstick)
    agent = folder.name.split("__")[0].removeprefix(PREFIX)
    return PublishedRun(agent, spec.key, attempt(spec.yardstick, scores, final, known), folder.name)


def attempt(stick: Yardstick, scores: Sequence[float], final: float | None, final_known: bool = True) -> Attempt:
    """By the rule that our own episodes have: who shows a score that cannot be has none."""
    everything = [*scores, *([final] if final is not None else [])]
    if any(metrics.too_good(stick, score) for score in everything):
        return Attempt(None, None, final_known, withheld=True)
    return Attempt(best_of(stick, everything), final, final_known)


def best_of(stick: Yardstick, scores: Sequence[float]) -> float | None:
    return (max if stick.direction == "up" else min)(scores, default=None)


def _final(folder: Path, stick: Yardstick) -> tuple[float | None, bool]:
    """The score of what was handed in, and whether that is known at all."""
    file = next(iter(sorted(folder.glob("*.traj"))), None)
    if file is None:
        return None, False
    recording = read_recording(file)
    return _value(recording.final, stick), recording.final_known


def _value(scores: object, stick: Yardstick) -> float | None:
    """The number that counts; None where an evaluation failed or printed no such number."""
    if not isinstance(scores, Mapping):
        return None
    try:
        return metrics.pick(scores, stick.metric)
    except metrics.ScoreError:
        return None
