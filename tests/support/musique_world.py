"""What the MuSiQue tests share: generated rows, genuine ones where they are at hand, and episodes by line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airloop.rollout.episode import run_episode
from airloop.types import Message, Task, Trajectory
from airloop_envs.musique.args import MusiqueArgs
from airloop_envs.musique.env import MusiqueEnv
from airloop_envs.musique.tools import as_text

DATA = Path(os.environ.get("AIR_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")
genuine = pytest.mark.skipif(
    not (DATA / "musique_dev_100.jsonl.gz").is_file(), reason="needs genuine rows: set AIR_TEST_DATA"
)
TRAIN, DEV, HOTPOT = (
    str(DATA / name)
    for name in ("musique_train_100.jsonl.gz", "musique_dev_100.jsonl.gz", "hotpotqa_train_100.jsonl.gz")
)


def make(**args: Any) -> MusiqueEnv:
    return MusiqueEnv(MusiqueArgs(**args))


class Lines:
    """Says the given replies in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message(role="assistant", content=self.lines.pop(0))


def call(tool: str, **arguments: Any) -> str:
    return as_text(tool, arguments)


def play(env: MusiqueEnv, lines: Sequence[str], task: Task | None = None, **more: Any) -> Trajectory:
    task = task or env.tasks("train")[0]
    more.setdefault("max_turns", len(lines))
    return asyncio.run(run_episode(env, task, Lines(lines), id="x", seed=0, **more))


def observed(trajectory: Trajectory) -> list[str]:
    return [observation.text for turn in trajectory.turns for observation in turn.observations]


def scripted(env: MusiqueEnv, name: str, tasks: Sequence[Task], seed: int = 0) -> list[Trajectory]:
    async def all_at_once() -> list[Trajectory]:
        return await asyncio.gather(
            *(run_episode(env, t, env.scripted(name, t, seed), id=f"{t.id}-{seed}", seed=seed) for t in tasks)
        )

    return asyncio.run(all_at_once())


def mean(trajectories: Sequence[Trajectory], name: str) -> float:
    return sum(t.metrics[name] for t in trajectories) / len(trajectories)
