"""What every engine must do, whichever computes: asked of the embedded one, of stand-ins and of vLLM itself. Each check
takes an engine that serves the policy, with an adapter, in a context of at least 64 tokens."""

from __future__ import annotations

import asyncio

import pytest
import torch

from airloop.engine.base import ContextFull, Engine, Generation, Sampling
from airloop.engine.vllm.parity import logprob_distance, trainer_logprobs
from airloop.policy import Policy

PROMPT = list(b"Where is it?")
AGREES = 1e-4  # nats a token, in fp32


def change(policy: Policy, seed: int, size: float = 0.2) -> None:
    """As an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator)


def agrees(policy: Policy, prompt: list[int], reply: Generation, temperature: float = 1.0) -> bool:
    computed = trainer_logprobs(policy, [*prompt, *reply.token_ids], len(prompt), temperature)
    return logprob_distance(reply.logprobs, computed) < AGREES


async def check_versions(engine: Engine, policy: Policy) -> None:
    """Log-probs are the trainer's, of the version that a reply says; nothing of an older one is found in a cache."""
    before = await engine.generate(PROMPT, Sampling(12, seed=3))
    assert before.stop == "length" and len(before.token_ids) == len(before.logprobs) == 12
    assert before.version == engine.version and agrees(policy, PROMPT, before)
    for version in range(engine.version + 1, engine.version + 6):
        change(policy, version)
        assert not agrees(policy, PROMPT, before), "what was sampled before was of another policy"
        async with engine.paused():
            pass
        await engine.publish(version)
        before = await engine.generate(PROMPT, Sampling(12, seed=3))
        assert before.version == engine.version == version and agrees(policy, PROMPT, before)


async def check_temperatures(engine: Engine, policy: Policy) -> None:
    """Log-probs are those of the scaled distribution, untruncated."""
    asked = [engine.generate([*PROMPT, i], Sampling(16, heat, seed=i)) for i, heat in enumerate((0.5, 1.0, 1.7))]
    for i, (reply, heat) in enumerate(zip(await asyncio.gather(*asked), (0.5, 1.0, 1.7), strict=True)):
        assert agrees(policy, [*PROMPT, i], reply, heat), heat
    greedy = [await engine.generate(PROMPT, Sampling(8, temperature=0.0, seed=seed)) for seed in (1, 2)]
    assert greedy[0].token_ids == greedy[1].token_ids


async def check_endings(engine: Engine, policy: Policy) -> None:
    """By its stop token, which is part of it, by its length, or by the context."""
    free = await engine.generate(PROMPT, Sampling(12, temperature=0.0))
    stop = free.token_ids[5]
    first = free.token_ids.index(stop)
    reply = await engine.generate(PROMPT, Sampling(12, temperature=0.0, stop_ids=(stop,)))
    assert reply.token_ids == free.token_ids[: first + 1] and reply.stop == "stop"
    context, on_tokens = engine.describe().context, list[int]()
    cut = await engine.generate([1] * (context - 2), Sampling(100), on_tokens=on_tokens.extend)
    assert len(cut.token_ids) == 2 and cut.stop == "length" and tuple(on_tokens) == cut.token_ids
    with pytest.raises(ContextFull, match=f"{context} tokens, the context {context}"):
        await engine.generate([1] * context, Sampling(1))


async def check_cancelling(engine: Engine, policy: Policy) -> None:
    """Who waits no longer gets nothing more, and disturbs nobody."""
    came = asyncio.Event()
    long = Sampling(engine.describe().context - len(PROMPT) - 1)
    task = asyncio.ensure_future(engine.generate(PROMPT, long, on_tokens=lambda _: came.set()))
    other = asyncio.ensure_future(engine.generate([5], Sampling(20, seed=1)))
    await came.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and engine.counters.abandoned > 0
    assert agrees(policy, [5], await other)
    assert len((await engine.generate(PROMPT, Sampling(5))).token_ids) == 5


CHECKS = (check_versions, check_temperatures, check_endings, check_cancelling)
