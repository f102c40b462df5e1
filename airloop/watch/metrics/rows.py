"""The rows of an evaluation: one episode each, of a task, under a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airloop.stats.intervals import Interval, mean_interval
from airloop.types import Trajectory
from airloop.watch.metrics.measured import is_share

RowKey = tuple[str, str, int]  # environment, task, seed


def row_key(trajectory: Trajectory) -> RowKey:
    return trajectory.task.env, trajectory.task.id, trajectory.seed


def scored_rows(trajectories: Iterable[Trajectory]) -> tuple[dict[RowKey, Trajectory], set[RowKey]]:
    """Episodes by row, the latest where an episode was repeated, and the rows that infrastructure trouble
    left without a score."""
    scored: dict[RowKey, Trajectory] = {}
    lost: set[RowKey] = set()
    for trajectory in sorted(trajectories, key=lambda t: t.started):
        if trajectory.ending == "infra_error":
            lost.add(row_key(trajectory))
        else:
            scored[row_key(trajectory)] = trajectory
    return scored, lost - scored.keys()


def value(trajectory: Trajectory, name: str) -> float | None:
    return trajectory.reward if name == "reward" else trajectory.metrics.get(name)


def value_names(trajectories: Iterable[Trajectory]) -> list[str]:
    # "seconds_…" say how busy the machine was, not how good the agent is
    names = {name for t in trajectories for name in t.metrics if not name.startswith("seconds_")}
    return [*(["success"] if "success" in names else []), "reward", *sorted(names - {"success", "reward"})]


def per_task(values: Iterable[tuple[RowKey, float]]) -> list[float]:
    """The mean of each task's episodes: they are not independent, so an interval is over tasks."""
    found: dict[tuple[str, str], list[float]] = {}
    for (env, task, _), number in values:
        found.setdefault((env, task), []).append(number)
    return [sum(numbers) / len(numbers) for numbers in found.values()]


def means(trajectories: Sequence[Trajectory]) -> dict[str, Interval]:
    """Mean and 95 % interval, over tasks, of the reward and of every metric, where it was measured."""
    found = {}
    for name in value_names(trajectories):
        measured = [(row_key(t), v) for t in trajectories if (v := value(t, name)) is not None]
        if measured:
            values = per_task(measured)
            found[name] = mean_interval(values, share=passes(name, values))
    return found


def passes(name: str, values: Iterable[float]) -> bool:
    """Whether values lie between 0 and 1 by their nature, as a reward does that is only ever 0 or 1."""
    return is_share(name) or (name == "reward" and {*values} <= {0.0, 1.0})
