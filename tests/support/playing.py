"""Episodes of mlgym played by a fixed list of commands, in the real sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from airloop.rollout.episode import run_episode
from airloop.types import Message, Task, Trajectory
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.env import MlgymEnv

GAME = "prisonersDilemma"
DEFECT = "cat << 'EOF' > strategy.py\ndef row_strategy(history):\n    return 1\nEOF"


class Commands:
    """Says each command in a block, then waits for the end by talking."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = list(commands)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        text = f"```bash\n{self.commands.pop(0)}\n```" if self.commands else "I have nothing more to do."
        return Message(role="assistant", content=text)


def with_env(work: Callable[[MlgymEnv], Awaitable[None]], seconds: float = 600, **args: Any) -> None:
    args = {"task_configs": [GAME], "prompt": "short", "standby": 1, "memory_mb": 1024, **args}

    async def run() -> None:
        env = MlgymEnv(MlgymArgs(**args))
        try:
            await asyncio.wait_for(work(env), seconds)
        finally:
            await env.close()

    asyncio.run(run())


async def play(env: MlgymEnv, commands: Sequence[str], task: Task | None = None, **options: Any) -> Trajectory:
    return await run_episode(env, task or env.tasks("train")[0], Commands(commands), id="x", seed=0, **options)


def observed(trajectory: Trajectory) -> list[str]:
    return [observation.text for turn in trajectory.turns for observation in turn.observations]
