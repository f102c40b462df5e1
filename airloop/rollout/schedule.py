"""What is sampled when, under which seed and which name: pure functions, so that a resumed run goes on as
if it had never stopped."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.seeds import stable_hash
from airloop.types import Task

MAX_NAMED = 6  # families named one by one


class TaskSchedule:
    """An endless stream: every epoch holds each task of each environment once, shuffled (E5: never sorted by
    difficulty, whatever order an environment lists them in). With `ratios`, by environment, each has a stream of its
    own, and the tasks of any stretch are shared out by them.

    From here on `task.env` is the run's name of the environment: a run may have the same one twice, with other args.
    """

    def __init__(
        self, envs: Mapping[str, Environment], split: str, seed: int, ratios: Mapping[str, float] | None = None
    ) -> None:
        self._seed = seed
        self._tasks = [replace(task, env=name) for name, env in envs.items() for task in env.tasks(split)]
        if not self._tasks:
            raise AirError(
                f"The environments {', '.join(envs) or '(none)'} have no tasks in the split {split!r}.",
                "choose another split, or other args of the environment",
            )

        with_tasks = {task.env for task in self._tasks}
        self._ratios = {name: ratio for name, ratio in (ratios or {}).items() if name in with_tasks}
        self._turns: list[tuple[str, int]] = []  # which environment's, and its how many-th task
        self._taken = dict.fromkeys(self._ratios, 0)
        self._own = {name: TaskSchedule({name: envs[name]}, split, seed) for name in self._ratios}

    def __len__(self) -> int:
        return len(self._tasks)

    def families(self) -> Counter[str]:
        """How many examples each family of tasks has."""
        return Counter(task.curve for task in self._tasks)

    def describe(self, batch_size: int, rollouts: int, steps: int) -> str:
        """What a run of this schedule will see, in a person's words."""
        examples, a_step = len(self), batch_size // rollouts
        if self._ratios:
            mixed = ", ".join(f"{name} {ratio:g} ({len(self._own[name])})" for name, ratio in self._ratios.items())
            a_step_is = f"{a_step} examples a step = {batch_size} rollouts / {rollouts} each"
            return f"{examples} examples mixed as {mixed}; {a_step_is}"
        return (
            f"{examples} examples{_of_families(self.families())}; {a_step} examples a step = {batch_size} rollouts / "
            f"{rollouts} each; {examples / a_step:.4g} steps an epoch; {steps} steps = "
            f"{steps * a_step / examples:.1f} epochs"
        )

    def batch(self, step: int, n: int) -> list[Task]:
        """The n tasks of a step."""
        return [self._at(position) for position in range(step * n, (step + 1) * n)]

    def spares(self, step: int, n: int, count: int) -> list[Task]:
        """Tasks to put in place of those of batch(step, n), in an order of the step's own: the stream itself
        goes on untouched, so what was replaced in one step does not change the next."""
        chosen = {(task.env, task.id) for task in self.batch(step, n)}
        if self._ratios:
            turns = [self._turn(i) for i in range(count)]
            own = {name: schedule._fresh(step, chosen) for name, schedule in self._own.items()}
            return [own[name][i % len(own[name])] for name, i in turns]
        candidates = self._fresh(step, chosen)
        return [candidates[i % len(candidates)] for i in range(count)]

    def _fresh(self, step: int, chosen: Set[tuple[str, str]]) -> list[Task]:
        order = [self._tasks[i] for i in self._shuffled(f"spares of step {step}")]
        return [task for task in order if (task.env, task.id) not in chosen] or order  # of so few, any may come again

    def _turn(self, position: int) -> tuple[str, int]:
        """Whose task it is: of whoever has had the least of its share by then."""
        while len(self._turns) <= position:
            total, so_far = sum(self._ratios.values()), len(self._turns) + 1
            name = max(self._ratios, key=lambda name: self._ratios[name] / total * so_far - self._taken[name])
            self._turns.append((name, self._taken[name]))
            self._taken[name] += 1
        return self._turns[position]

    def _at(self, position: int) -> Task:
        if self._ratios:
            name, number = self._turn(position)
            return self._own[name]._at(number)
        epoch, place = divmod(position, len(self._tasks))
        return self._tasks[self._shuffled(f"epoch {epoch}")[place]]

    @functools.lru_cache(maxsize=4)  # noqa: B019 - one schedule per run
    def _shuffled(self, name: str) -> list[int]:
        keys = [stable_hash(self._seed, name, task.env, task.id, i) for i, task in enumerate(self._tasks)]
        return sorted(range(len(keys)), key=lambda i: (keys[i], i))


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
