"""Agents that are functions: each episode is a call in a process of its own, which returns its own score."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from airloop import own_code
from airloop.errors import MissingRequirement
from airloop.programs.workers import Workers
from airloop.rollout.program import Address, ProgramOutcome
from airloop.types import Task


class Function:
    """Plays episodes with "./my_agent.py:solve"."""

    scorer_name = "The agent's function"

    def __init__(self, named: str, python: str) -> None:
        path = own_code.check_file(named, "program", "correct its path.")
        self.workers = Workers(path, own_code.split_id(named)[2], python)

    async def play(self, task: Task, seed: int, address: Address) -> tuple[float | dict[str, float], ProgramOutcome]:
        given = await self.workers.run(dict(task.payload), {**address.variables(), "AIR_SEED": str(seed)})
        return given, ProgramOutcome({})

    def lacks(self) -> Sequence[MissingRequirement]:
        return ()

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        return ()

    def abandon(self) -> None:
        self.workers.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.abandon)
