"""The oracle where the tools answer badly."""

from __future__ import annotations

import asyncio

from airloop.types import Message
from airloop_envs.soup.agents import Oracle
from airloop_envs.soup.generate import generate


def test_the_oracle_asks_again_when_a_busy_machine_cut_its_code_off() -> None:
    task = generate("pagination", 16)
    oracle = Oracle(task.recipe)

    async def work() -> None:
        first = await oracle.reply([Message(role="user", content="begin")], [])
        again = await oracle.reply([Message(role="tool", content="[stopped after 10 s]")], [])
        assert "run_python" in first["content"] and "run_python" in again["content"]
        assert "navigate" not in again["content"] and not oracle.seen and oracle.step == 1

    asyncio.run(work())
