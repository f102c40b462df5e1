"""An engine above stand-ins of vLLM, for as long as a test works with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from support.vllm_standin import stand_in

from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.server import VllmServer
from airloop.learn.lora import attach_lora, use_fp32_adapters
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy


def make_policy() -> Policy:
    model = tiny_model("llama").model
    peft = attach_lora(model, 8, 16, ["q_proj", "v_proj", "down_proj"], None)
    use_fp32_adapters(model)
    return Policy(model, logits_head(model), peft)


def served(
    folder: Path,
    work: Callable[[VllmEngine, Policy], Awaitable[Any]],
    count: int = 1,
    context: int = 256,
    store: AdapterStore | None = None,
    within_s: float = 600.0,
    **server: Any,
) -> Any:
    """`server`: what is special about each, see stand_in."""

    async def whole() -> Any:
        policy = make_policy()
        adapters = store or AdapterStore(folder / "adapters", "tiny")
        engine = VllmEngine(policy, [stand_in(**server) for _ in range(count)], adapters, context, 8)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            await engine.start()
            return await work(engine, policy)

    return asyncio.run(asyncio.wait_for(whole(), within_s))


async def broken(server: VllmServer, **how: Any) -> None:
    async with httpx.AsyncClient() as client:
        await client.post(f"{server.url}/break", json=how)
