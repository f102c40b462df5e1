"""What is sampled when, under which seed and which name: pure functions, so that a resumed run goes on as
if it had never stopped."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from airloop.envs.base import Environment
from airloop.envs.contract import list_tasks
from airloop.errors import AirError
from airloop.rollout.mixture import Curriculum, Figures, Mixture, Stream
from airloop.seeds import stable_hash
from airloop.text.spelling import misspelt
from airloop.types import Task

MAX_NAMED = 6  # families named one by one
RECENT = 4  # steps by which it is judged how many groups the next will lose


class TaskStream:
    """An endless stream of these tasks: every epoch holds each of them once, shuffled (E5: never sorted by difficulty,
    whatever order an environment lists them in)."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks, self._seed = tasks, seed

    def __len__(self) -> int:
        return len(self._tasks)

    def at(self, position: int) -> Task:
        epoch, place = divmod(position, len(self._tasks))
        return self._tasks[self._shuffled(f"epoch {epoch}")[place]]

    def others(self, step: int, chosen: Set[tuple[str, str]]) -> list[Task]:
        """In an order of the step's own, without those that were chosen; of so few, any may come again."""
        order = [self._tasks[i] for i in self._shuffled(f"spares of step {step}")]
        return [task for task in order if (task.env, task.id) not in chosen] or order

    @functools.lru_cache(maxsize=4)  # noqa: B019 - a few for each run
    def _shuffled(self, name: str) -> list[int]:
        keys = [stable_hash(self._seed, name, task.env, task.id, i) for i, task in enumerate(self._tasks)]
        return sorted(range(len(keys)), key=lambda i: (keys[i], i))


class TaskSchedule:
    """The tasks of every step: of one stream, or of several that are mixed. With `ratios`, by environment, each has a
    stream of its own; with `families`, by environment, or a curriculum, so has each family of its tasks.

    From here on `task.env` is the run's name of the environment: a run may have the same one twice, with other args.
    """

    def __init__(
        self,
        envs: Mapping[str, Environment],
        split: str,
        seed: int,
        ratios: Mapping[str, float] | None = None,
        families: Mapping[str, Mapping[str, float]] | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        self._tasks = [replace(task, env=name) for name, env in envs.items() for task in list_tasks(env, split)]
        if not self._tasks:
            raise AirError(
                f"The environments {', '.join(envs) or '(none)'} have no tasks in the split {split!r}.",
                "choose another split, or other args of the environment",
            )
        self._all = TaskStream(self._tasks, seed)
        self._before: list[Figures] = []  # what came of the steps so far, by family
        self._signals: list[tuple[float, float]] = []  # of each: groups kept, groups without signal
        self._mixture: Mixture | None = None
        if ratios or families or curriculum:
            by_family = bool(families or curriculum)
            parts = _streams(self._tasks, by_family)
            self._streams = {stream: TaskStream(tasks, seed) for stream, tasks in parts.items()}
            curves = {stream: tasks[0].curve for stream, tasks in parts.items()}
            self._mixture = Mixture(_shares(parts, ratios, families or {}), curves, curriculum)

    def __len__(self) -> int:
        return len(self._tasks)

    def families(self) -> Counter[str]:
        """How many examples each family of tasks has."""
        return Counter(task.curve for task in self._tasks)

    def heard(self, metrics: Mapping[str, Any]) -> None:
        """What came of the next step: a curriculum goes by its families, dynamic sampling by its groups."""
        self._before.append(metrics.get("task", {}))
        sampled = metrics.get("rollout", {})
        self._signals.append((sampled.get("groups", 0), sampled.get("dropped_no_signal", 0)))

    def expected_losses(self, step: int, n: int) -> int:
        """How many groups will lack a signal until n have one, as the last steps had it."""
        recent = self._signals[max(0, step - RECENT) : step]
        kept, dropped = (sum(column) for column in zip(*recent, strict=True)) if recent else (0, 0)
        return round(n * dropped / kept) if kept else n if dropped else 0

    def describe(self, batch_size: int, rollouts: int, steps: int) -> str:
        """What a run of this schedule will see, in a person's words."""
        examples, a_step = len(self), batch_size // rollouts
        if self._mixture:
            shares = self._mixture.weights([])
            named = [f"{'/'.join(filter(None, one))} {shares[one]:.0%} ({len(self._streams[one])})" for one in shares]
            more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
            at_first = " at first" if self._mixture.curriculum else ""
            a_step_is = f"{a_step} examples a step = {batch_size} rollouts / {rollouts} each"
            return f"{examples} examples mixed{at_first} as {', '.join(named[:MAX_NAMED] + more)}; {a_step_is}"
        return (
            f"{examples} examples{_of_families(self.families())}; {a_step} examples a step = {batch_size} rollouts / "
            f"{rollouts} each; {examples / a_step:.4g} steps an epoch; {steps} steps = "
            f"{steps * a_step / examples:.1f} epochs"
        )

    def batch(self, step: int, n: int) -> list[Task]:
        """The n tasks of a step."""
        if self._mixture:
            turns = self._mixture.turns(step, n, self._before)
            return [self._streams[stream].at(number) for stream, number in turns]
        return [self._all.at(position) for position in range(step * n, (step + 1) * n)]

    def spares(self, step: int, n: int, count: int) -> list[Task]:
        """Tasks to put in place of those of batch(step, n), in an order of the step's own: the stream itself
        goes on untouched, so what was replaced in one step does not change the next."""
        chosen = {(task.env, task.id) for task in self.batch(step, n)}
        if self._mixture:
            own = {stream: tasks.others(step, chosen) for stream, tasks in self._streams.items()}
            turns = self._mixture.fresh(count, self._before[:step])
            return [own[stream][number % len(own[stream])] for stream, number in turns]
        candidates = self._all.others(step, chosen)
        return [candidates[i % len(candidates)] for i in range(count)]


def _streams(tasks: Sequence[Task], by_family: bool) -> dict[Stream, list[Task]]:
    found: dict[Stream, list[Task]] = {}
    for task in tasks:
        found.setdefault((task.env, task.family if by_family else ""), []).append(task)
    return found


def _shares(
    streams: Mapping[Stream, Sequence[Task]],
    ratios: Mapping[str, float] | None,
    families: Mapping[str, Mapping[str, float]],
) -> dict[Stream, float]:
    """An environment's share is its ratio, or the number of its tasks; a family's within it likewise. A family of
    weight 0 has none."""
    sizes = Counter[str]()
    for (env, _), tasks in streams.items():
        sizes[env] += len(tasks)
    shares: dict[Stream, float] = {}
    for env, size in sizes.items():
        own = {family: float(len(tasks)) for (of, family), tasks in streams.items() if of == env}
        if weights := families.get(env):
            _check_families(env, weights, own)
            own = {family: weights.get(family, 1.0) for family in own}
        share = ratios.get(env, 1.0) if ratios else size
        shares |= {(env, f): share * weight / sum(own.values()) for f, weight in own.items() if weight > 0}
    return shares


def _check_families(env: str, weights: Mapping[str, float], known: Mapping[str, float]) -> None:
    names = [family for family in known if family]
    for family in weights:
        if family not in names:
            near = misspelt(family, names)
            hint = f"did you mean {near!r}? " if near else ""
            raise AirError(
                f"The environment {env!r} has no family of tasks {family!r}.",
                f"{hint}It has: {', '.join(names[:MAX_NAMED])}{', …' if len(names) > MAX_NAMED else ''}."
                if names
                else "leave out families: its tasks are of one kind.",
            )
    if not any(weights.get(family, 1.0) > 0 for family in known):
        raise AirError(f"All families of {env!r} have the weight 0.", "leave one of them more.")


def stratified(tasks: Iterable[Task], count: int) -> list[Task]:
    """The first `count` of these tasks, each family with the share that it has of all of them: of few, chance would
    take many of one and none of another."""
    by_curve: dict[Stream, list[Task]] = {}
    for task in tasks:
        by_curve.setdefault((task.env, task.family), []).append(task)
    if len(by_curve) < 2:
        return [task for tasks in by_curve.values() for task in tasks[:count]]
    sizes = {stream: float(len(tasks)) for stream, tasks in by_curve.items()}
    turns = Mixture(sizes, dict.fromkeys(sizes, "")).fresh(count, [])
    return [by_curve[stream][number] for stream, number in turns]


def _of_families(families: Counter[str]) -> str:
    sizes = set(families.values())
    if len(families) == 1:
        return ""
    if len(sizes) == 1:
        return f" ({len(families)} tasks × {sizes.pop()})"
    named = [f"{name} {count}" for name, count in families.most_common(MAX_NAMED)]
    more = [f"{len(families) - MAX_NAMED} more"] if len(families) > MAX_NAMED else []
    return f" of {len(families)} tasks ({', '.join(named + more)})"


class Names:
    """Ids of trajectories, which are also the stems of their files: unique by construction within a step (the
    group's index and the sample's number are in it), and by memory within a process (G8)."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def make(self, task_id: str, version: int, index: int, sample: int) -> str:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", task_id).strip("-.")[:80] or "task"
        stem = f"{safe}_pi{version}_{time.strftime('%Y%m%dT%H%M%S')}_{index}-{sample}"
        name, again = stem, 1
        while name in self._used:
            again += 1
            name = f"{stem}-{again}"
        self._used.add(name)
        return name


def place_in_step(trajectory_id: str) -> tuple[int, int]:
    """The (index of the group, number of the sample) that Names.make put into an id."""
    index, sample = trajectory_id.rpartition("_")[2].split("-")[:2]
    return int(index), int(sample)
