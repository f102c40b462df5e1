"""The environment `soup`: extraction from generated web pages, with a Python tool that agents call."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from airloop.envs.base import ActionFormat, Environment
from airloop.errors import AirError, MissingRequirement
from airloop.sandbox.needs import describe_missing, looking, missing_in_sandbox, missing_modules
from airloop.types import Agent, Task
from airloop_envs.soup import generate as generator
from airloop_envs.soup.agents import scripted_agent
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.grading import COMPONENTS
from airloop_envs.soup.sandbox_pool import MODULES, PACKAGES, SandboxPool, image
from airloop_envs.soup.session import SoupSession
from airloop_envs.soup.spec import SoupTask

HELD_OUT_PER_KIND = 20  # tasks of a kind in "eval" and in "test", whatever the arguments


@dataclass(frozen=True)
class Running:
    """What lives as long as an event loop does."""

    loop: asyncio.AbstractEventLoop
    sandbox_pool: SandboxPool


class SoupEnv(Environment[SoupArgs]):
    """Data from web pages: write Python with BeautifulSoup, run it on a page you cannot see, answer in JSON."""

    name: ClassVar[str] = "soup"
    action_format: ClassVar[ActionFormat] = "tools"
    success: ClassVar[str | None] = "passed"
    family_label: ClassVar[str] = "level"
    splits: ClassVar[tuple[str, ...]] = tuple(generator.SEEDS)
    dishonest: ClassVar[tuple[str, ...]] = ("noop", "guesser", "motions", "cheat")
    penalties: ClassVar[tuple[str, ...]] = ("safety", "efficiency", "library")
    # What the answer's worth is reduced by, and what a wrong episode is lifted to: nothing without the answer.
    shaping: Mapping[str, float] = MappingProxyType({"safety": 1.0, "efficiency": 1.0, "library": 1.0, "process": 1.0})

    def __init__(self, args: SoupArgs | None = None) -> None:
        super().__init__(args)
        self.reward_weights: Mapping[str, float] = dict.fromkeys(self.components, 1.0)
        self.kinds = self._chosen_kinds()
        self._running: Running | None = None

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(name for name in COMPONENTS if name != "process" or self.args.credits_process)

    def _chosen_kinds(self) -> list[str]:
        for name in self.args.kinds:
            if name not in generator.KINDS:
                near = difflib.get_close_matches(name, generator.KINDS, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise AirError(
                    f"Environment 'soup' has no kind of task {name!r}.",
                    f"{hint}Known: {', '.join(generator.KINDS)}.",
                )
        wanted = self.args.kinds or list(generator.KINDS)
        chosen = [name for name in wanted if generator.KINDS[name].level in self.args.levels]
        if not chosen:
            raise AirError(
                f"None of the kinds {', '.join(wanted)} is of the level {', '.join(self.args.levels)}.",
                'remove kinds, or set difficulty = "mixed" and mode = "all".',
            )
        return chosen

    def weigh(self, weights: Mapping[str, float]) -> None:
        if "process" in weights and not self.args.credits_process:
            raise AirError(
                "Environment 'soup' gives no reward component 'process' here.", "set args.process_credit = true."
            )
        super().weigh({**dict.fromkeys(self.components, 0.0), **weights})

    @property
    def max_turns(self) -> int:
        return self.args.max_turns

    def tasks(self, split: str) -> Sequence[Task]:
        """Example by example, so that the first few already come from all kinds. No page is made here."""
        if split == "bench":
            chosen = set(self.kinds)
            return [self._task(kind, seed, split) for kind, seed in generator.bench() if kind in chosen]
        seeds = generator.SEEDS[split]
        training = split == "train"
        count = self.args.num_examples_per_kind if training else HELD_OUT_PER_KIND
        first = self.args.seed * count if training else 0
        repeats = self._repeats(split)
        most = max(repeats.values())
        return [
            self._task(kind, seeds[(first * most + example) % len(seeds)], split)
            for example in range(count * most)
            for kind in self.kinds
            if example < count * repeats[kind]
        ]

    def _repeats(self, split: str) -> dict[str, int]:
        """How often each kind comes for one of the rarest."""
        shares = self.args.levels
        return {kind: shares[generator.KINDS[kind].level] if split == "train" else 1 for kind in self.kinds}

    def count(self, split: str) -> int:
        if split not in generator.SEEDS or split == "bench":
            return super().count(split)
        each = self.args.num_examples_per_kind if split == "train" else HELD_OUT_PER_KIND
        return each * sum(self._repeats(split).values())

    def _task(self, kind: str, seed: int, split: str) -> Task:
        payload = {"kind": kind, "seed": seed}
        return Task(self.name, f"{kind}-{seed}", split, payload, family=generator.KINDS[kind].level)

    def soup_task(self, task: Task) -> SoupTask:
        return generator.generate(task.payload["kind"], task.payload["seed"])

    def open(self, task: Task, seed: int) -> SoupSession:
        """The seed has no use here: all that is random in a task is in the task's own seed."""
        return SoupSession(self.soup_task(task), self.args, self.sandbox_pool())

    def sandbox_pool(self) -> SandboxPool:
        loop = asyncio.get_running_loop()
        if self._running is not None and self._running.loop is not loop:
            self.abandon()
        if self._running is None:
            args = self.args
            start = image(args.memory_mb, args.timeout_s, args.container_image)
            self._running = Running(loop, SandboxPool.open(args, start))
        return self._running.sandbox_pool

    def lacks(self) -> Sequence[MissingRequirement]:
        return missing_in_sandbox(self.args.sandbox)

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        """BeautifulSoup and its parsers, imported as an agent's code would."""
        args = self.args
        async with looking(args.sandbox, args.python, PACKAGES, args.container_runtime, args.syscalls) as backend:
            start = image(args.memory_mb, args.timeout_s, args.container_image)
            lost = await missing_modules(backend, start, MODULES, load=True)
        return [describe_missing(lost, self.name, args.sandbox, args.python, args.container_image)] if lost else []

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return scripted_agent(name, self.soup_task(task), seed, self.args.demo_accuracy)

    def abandon(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.sandbox_pool.pool.abandon()

    async def close(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.sandbox_pool.close()
