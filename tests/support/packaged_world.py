"""Packages of environments in verifiers' own environments, played by the scripts that air plays them by."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.interop_world import PROGRAMS, interpreter
from support.standin import StandIn, serving

from airloop.envs.base import Environment, load_environment
from airloop.rollout.episode import run_episode
from airloop.seeds import episode_seed
from airloop.types import Agent, Message, Task, Trajectory

SCRIPTS = ("oracle", "noop")


@dataclass(frozen=True)
class Golden:
    """Tasks of an environment, as many for each script; the oracle has the first of them."""

    env_id: str
    args: dict[str, Any]
    each: int = 1
    split: str = "eval"

    @property
    def title(self) -> str:
        return self.env_id.replace("-", "_")

    def environment(self) -> Environment:
        return load_environment(self.env_id, self.args)

    def tasks(self, env: Environment) -> list[Task]:
        return list(env.tasks(self.split))[: self.each * len(SCRIPTS)]

    def agents(self, env: Environment) -> list[Agent]:
        tasks = self.tasks(env)
        return [Aloud(env.scripted(SCRIPTS[i // self.each], task, seed_of(task))) for i, task in enumerate(tasks)]


class Aloud:
    """Says something in place of nothing: an empty reply is the model's error in verifiers 0.3."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        said = await self.agent.reply(messages, tools)
        return said if said["content"] else Message(role="assistant", content="…")


def seed_of(task: Task) -> int:
    """As the first episode of a task has it in a package."""
    return episode_seed(0, 0, task.env, task.id, 0)


def play_here(golden: Golden) -> list[Trajectory]:
    """By air itself."""

    async def play() -> list[Trajectory]:
        env = golden.environment()
        env.weigh(env.reward_weights)
        try:
            pairs = zip(golden.tasks(env), golden.agents(env), strict=True)
            return [await run_episode(env, task, agent, id=task.id, seed=seed_of(task)) for task, agent in pairs]
        finally:
            await env.close()

    return asyncio.run(play())


def play_there(golden: Golden, package: Path, library: str, how: str) -> tuple[list[dict[str, Any]], StandIn]:
    """By verifiers: what it says of every episode, and the model that it has asked."""
    env = golden.environment()
    model = StandIn(golden.agents(env), env.action_format == "tools")
    asked = {"id": f"air-{golden.env_id}", "split": golden.split, "args": golden.args}
    return ask(model, package, library, how, {**asked, "n": golden.each * len(SCRIPTS)}), model


def ask(model: StandIn, package: Path, library: str, how: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """What tests/interop/programs/packaged_play.py says of the episodes that it has played."""
    with serving(model) as url:
        words = [str(PROGRAMS / "packaged_play.py"), how, json.dumps({"args": {}, **asked, "url": url})]
        said = in_environment(library, package, words)
    line = next(line for line in said.splitlines() if line.startswith("PLAYED "))
    found: list[dict[str, Any]] = json.loads(line.removeprefix("PLAYED "))
    return found


def in_environment(library: str, package: Path, words: list[str], cwd: Path | None = None, seconds: float = 600) -> str:
    """What a program of a library's environment prints, with the package importable. `words` begin with a file, or
    with the name of a command of that environment."""
    python = interpreter(library)
    program = [python, *words] if words[0].endswith(".py") else [str(Path(python).parent / words[0]), *words[1:]]
    variables = {**os.environ, "PYTHONPATH": str(package), "STANDIN_KEY": "none", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        program, cwd=cwd or package, env=variables, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
