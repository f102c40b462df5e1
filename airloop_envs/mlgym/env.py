"""The environment `mlgym`: research tasks in a sandbox, from a checkout of MLGym or from our own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from airloop.envs.base import ActionFormat, Environment
from airloop.errors import AirError, MissingRequirement, TaskProblem
from airloop.sandbox.backends import make_backend
from airloop.sandbox.interpreter import PACKAGES
from airloop.sandbox.needs import describe_missing, looking, missing_in_sandbox, missing_modules, packages_of
from airloop.sandbox.pool import Pool
from airloop.types import Agent, Task, Trajectory
from airloop_envs.mlgym import rewards
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.baselines import Baselines
from airloop_envs.mlgym.grading import Grader
from airloop_envs.mlgym.imports import needed_modules
from airloop_envs.mlgym.library import Library, without_warnings
from airloop_envs.mlgym.researchers import researcher
from airloop_envs.mlgym.session import MlgymSession, Places
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.task_problems import answer_problems, task_problems
from airloop_envs.mlgym.workspace import agent_image

log = logging.getLogger("airloop.envs.mlgym.env")  # among the environments': a run shows them

SPLITS = ("train", "eval", "test")


@dataclass(frozen=True)
class Running:
    """What lives as long as an event loop does."""

    loop: asyncio.AbstractEventLoop
    places: Places


class MlgymEnv(Environment[MlgymArgs]):
    """Machine-learning research in a shell: change code, train, validate, submit; scored out of the agent's reach."""

    name: ClassVar[str] = "mlgym"
    action_format: ClassVar[ActionFormat] = "command"
    success: ClassVar[str | None] = "improved"
    # Not `tool`: where nobody has a score, it pays for looking around and costs those who try.
    penalties: ClassVar[tuple[str, ...]] = ("idle",)
    reward_weights: Mapping[str, float] = {"headroom": 1.0, "idle": 1.0}
    # None of these is a success: at these weights they cannot lift who hands in what was there above who has done
    # something.
    shaping: Mapping[str, float] = MappingProxyType({"tool": 0.2, "validated": 0.2, "idle": 1.0})
    dishonest: ClassVar[tuple[str, ...]] = ("noop", "cheat", "idle", "prober")

    def __init__(self, args: MlgymArgs | None = None) -> None:
        super().__init__(args)
        args = self.args
        self.turn_reward_mode: Mapping[str, Literal["sum", "mean"]] = {"tool": args.tool_reward, "delta": "sum"}
        self.library = Library(args)
        self._running: Running | None = None

    def weigh(self, weights: Mapping[str, float]) -> None:
        for spec in self.library.chosen() if rewards.OF_REFERENCE & set(weights) else ():
            if spec.yardstick.reference is None:
                raise AirError(
                    f"The reward headroom needs a reference score, and none is known for the task {spec.key!r}.",
                    f"use rewards = {{ improvement = 1.0 }}, or args.metrics.{spec.key} = {{ reference = … }}.",
                )
        super().weigh(weights)

    @property
    def components(self) -> tuple[str, ...]:
        """Some need a best known score, which not every task has."""
        known = all(spec.yardstick.reference is not None for spec in self.library.chosen())
        return tuple(name for name in rewards.COMPONENTS if known or name not in rewards.OF_REFERENCE)

    @property
    def max_turns(self) -> int:
        return self.args.max_turns

    def tasks(self, split: str) -> Sequence[Task]:
        """Example by example, so that the first few already come from all tasks."""
        specs = self.library.chosen()
        return [
            self._task(spec.key, example, split) for example in range(self.args.num_examples_per_task) for spec in specs
        ]

    def count(self, split: str) -> int:
        return len(self.library.chosen()) * self.args.num_examples_per_task

    def _task(self, key: str, example: int, split: str) -> Task:
        variant = self.library.variant(key, example, split)
        name = f"{key}-{example}" if split == "train" else f"{key}-{split}-{example}"
        return Task(self.name, name, split, {"task": key, "variant": variant}, family=key)

    def check_tasks(self) -> Iterator[TaskProblem]:
        return task_problems(self._named())

    def check_answers(self) -> Iterator[TaskProblem]:
        return answer_problems(self._named())

    def catalogue(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        from airloop_envs.mlgym.catalogue import catalogue, format_catalogue

        with without_warnings():
            rows = catalogue(self.args.mlgym_root)
        return rows, format_catalogue(rows)

    def _named(self) -> list[TaskSpec]:
        """The first variant of each task that is named, also of those that cannot be opened."""
        return [self.library.spec(n, self.library.variant(n, 0, "train")) for n in self.args.task_configs]

    def spec(self, task: Task) -> TaskSpec:
        return self.library.spec(task.payload["task"], task.payload["variant"])

    def open(self, task: Task, seed: int) -> MlgymSession:
        """The seed has no use here: what is random in a task is in its variant, or drawn anew by the grader."""
        return MlgymSession(task, self.spec(task), self.args, self.places(), tuple(self.reward_weights))

    def places(self) -> Places:
        loop = asyncio.get_running_loop()
        if self._running is not None and self._running.loop is not loop:
            self.abandon()
        if self._running is None:
            backend = make_backend(
                self.args.sandbox, self.args.python, self._packages(), syscalls=self.args.syscalls,
                runtime=self.args.container_runtime,
            )  # fmt: skip
            pool = Pool(backend, standby=self.args.standby)
            sandboxes = self.args.sandboxes()
            grader = Grader(pool, sandboxes)
            self._running = Running(loop, Places(pool, grader, Baselines(pool, grader, sandboxes)))
        return self._running.places

    def _packages(self) -> tuple[str, ...]:
        """What every agent gets, and what the tasks' own code imports besides."""
        modules = [module for spec in self.library.chosen() for module in needed_modules(spec)]
        return tuple(dict.fromkeys((*PACKAGES, *(name for module in modules for name in packages_of(module)))))

    def lacks(self) -> Sequence[MissingRequirement]:
        return missing_in_sandbox(self.args.sandbox, self.args.sandboxes().gpus)

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        """What each task's code imports, looked for in a sandbox of that task."""
        args, found = self.args, []
        async with looking(
            args.sandbox, args.python, self._packages(), args.container_runtime, args.syscalls
        ) as backend:
            for chosen in self.library.chosen():
                spec = self.library.spec(chosen.key, chosen.variant)
                image, modules = agent_image(spec, args.sandboxes()), needed_modules(spec)
                if modules and (lost := await missing_modules(backend, image, modules)):
                    who = f"The task {spec.key!r}"
                    found.append(describe_missing(lost, who, args.sandbox, args.python, args.container_image))
        return found

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return researcher(name, self.spec(task), seed, self.args.max_turns, self.args.demo_skill)

    def group_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        if "percentile" not in self.reward_weights:
            return [{} for _ in trajectories]
        sign = 1.0 if self.spec(trajectories[0].task).yardstick.direction == "up" else -1.0
        scores = [sign * t.metrics["score"] if "score" in t.metrics else None for t in trajectories]
        return [{"percentile": rank} for rank in rewards.percentiles(scores)]

    def abandon(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.places.pool.abandon()

    async def close(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.places.pool.close()
