"""Prints one episode in full, as the agent had it: python -m airloop_envs.musique.example [AGENT] [KEY=VALUE …]

AGENT is oracle (the default), demo, noop or cheat; KEY=VALUE sets arguments of the environment (datasets=…).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.rollout.episode import run_episode
from airloop.types import Trajectory


async def play(agent: str, args: dict[str, Any]) -> tuple[Trajectory, Sequence[Any]]:
    env = load_environment("musique", args)
    task = env.tasks("train")[0]
    async with env.open(task, 0) as session:
        tools = (await session.begin()).tools
    return await run_episode(env, task, env.scripted(agent, task, 0), id="example", seed=0), tools


def lines(trajectory: Trajectory, tools: Sequence[Any]) -> Iterator[str]:
    yield f"=== {trajectory.task.id}, curve {trajectory.task.curve}"
    yield "--- tools"
    yield from (json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    for turn in trajectory.turns:
        for message in (*turn.shown, turn.reply):
            yield f"--- {message['role']}"
            yield message["content"]
    yield f"=== {trajectory.ending}: reward {trajectory.reward:.3f}"
    yield "  ".join(f"{name} {value:.2f}" for name, value in trajectory.metrics.items())


def main(words: Sequence[str]) -> None:
    agent = next((word for word in words if "=" not in word), "oracle")
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    args = {key: json.loads(value) if value[:1].isdigit() else value for key, value in pairs.items()}
    try:
        print("\n".join(lines(*asyncio.run(play(agent, args)))))
    except AirError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
