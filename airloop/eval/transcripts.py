"""Transcripts of whole episodes of a scripted agent, for people to read: messages, replies, observations and
rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.rollout.scripted import run_agent
from airloop.success import METRIC
from airloop.types import Trajectory


def play_tasks(
    name: str, split: str, n: int, agent: str, args: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The first n tasks of a split, each played once by the environment's own script of that name."""

    async def main() -> list[Trajectory]:
        env = load_environment(name, args)
        chosen = env.tasks(split)[:n]
        if not chosen:
            raise AirError(f"{name} has no tasks in the split {split!r}.", "choose another split.")
        env.warm()
        try:
            return [await run_agent(env, task, env.scripted(agent, task, 0), id=task.id, seed=0) for task in chosen]
        finally:
            await env.close()

    return [_row(trajectory, agent) for trajectory in asyncio.run(main())]


def _row(trajectory: Trajectory, agent: str) -> dict[str, Any]:
    messages: list[Mapping[str, Any]] = []
    for turn in trajectory.turns:
        messages += [*turn.shown, turn.reply]
    if trajectory.turns:
        messages += [{"role": "environment", "content": o.text} for o in trajectory.turns[-1].observations if o.text]
    return {
        "task": trajectory.task.id,
        "split": trajectory.task.split,
        "curve": trajectory.task.curve,
        "agent": agent,
        "messages": messages,
        "ending": trajectory.ending,
        "error": trajectory.error,
        "rewards": dict(trajectory.rewards),
        "turn_rewards": [dict(rewards) for rewards in trajectory.turn_rewards],
        "reward": trajectory.reward,
        "metrics": dict(trajectory.metrics),
    }


def format_transcripts(rows: Sequence[dict[str, Any]]) -> str:
    blocks = []
    for row in rows:
        lines = [f"=== {row['task']} ({row['split']}, curve {row['curve']}), played by {row['agent']}"]
        for message in row["messages"]:
            who = " ".join(filter(None, (message["role"], message.get("name", ""))))
            lines += [f"--- {who}", message["content"]]
        success = f"success {row['metrics'][METRIC]:g}, " if METRIC in row["metrics"] else ""
        lines += [f"=== {row['ending']}: {success}reward {row['reward']:.3f} ({_numbers(row['rewards'])})"]
        if any(row["turn_rewards"]):
            lines.append("per turn: " + "; ".join(_numbers(rewards) or "–" for rewards in row["turn_rewards"]))
        lines.append(row["error"] or _numbers(row["metrics"]))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _numbers(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items() if not name.startswith("seconds"))
