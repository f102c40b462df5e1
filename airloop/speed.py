"""How fast this machine is with this model: prompt, sampled and trained tokens per second, measured in some seconds."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airloop.assemble import Parts

# Long enough that a pass is as efficient as a run's, short enough for a machine of 60 GFLOP/s: together some 8 s there.
PROMPT = 192
DECODED = 6  # tokens of each reply
TRAINED = 384
# Kernels are compiled, and memory is taken, by a pass that is not timed.
WARM_UP = 32


@dataclass(frozen=True)
class Speed:
    """Tokens per second: of prompts, of replies sampled side by side, and of forward and backward passes."""

    prompt: float
    decode: float
    train: float
    seconds: float = 0.0  # that measuring took

    def __str__(self) -> str:
        return f"{self.prompt:,.0f} prompt, {self.decode:,.0f} sampled and {self.train:,.0f} trained tokens a second"


async def measure_speed(parts: Parts) -> Speed:
    """With the run's own engine and learner, which are afterwards as they were: no weight, no cached prefix and no
    random state differs."""
    began = time.perf_counter()
    rng = random.Random(0)
    await _sample(parts, rng, WARM_UP, 1, 1)
    length = min(PROMPT, parts.config.context // 2)
    prompt_s = await _sample(parts, rng, length, 1, 1)
    together = max(1, min(parts.config.orchestrator.batch_size, parts.engine.describe().batch))
    # One prompt for all, so that its keys and values are computed once: what is left is decoding.
    decode_s = max(await _sample(parts, rng, WARM_UP, 1 + DECODED, together) - prompt_s * WARM_UP / length, 1e-6)
    async with parts.engine.aside():
        _train(parts, rng, WARM_UP)
        train_s = _train(parts, rng, TRAINED)
    await parts.engine.publish(parts.engine.version)
    return Speed(length / prompt_s, together * DECODED / decode_s, TRAINED / train_s, time.perf_counter() - began)


async def _sample(parts: Parts, rng: random.Random, length: int, tokens: int, replies: int) -> float:
    from airloop.engine.base import Sampling

    length = min(length, parts.config.context - tokens - 1)
    prompt = rng.choices(range(parts.loaded.tokenizer.vocab_size), k=length)
    began = time.perf_counter()
    engine = parts.engine
    await asyncio.gather(*(engine.generate(prompt, Sampling(tokens, seed=i), f"{i:04d}") for i in range(replies)))
    return time.perf_counter() - began


def _train(parts: Parts, rng: random.Random, tokens: int) -> float:
    """Rows of which the second half is trained, as in an episode."""
    from airloop.learn.batches import Row

    length = min(tokens, parts.config.context)
    rows = []
    for i in range(-(-tokens // length)):
        ids = tuple(rng.choices(range(parts.loaded.tokenizer.vocab_size), k=length))
        train = (False,) * (length - length // 2) + (True,) * (length // 2)
        rows.append(Row(f"speed-{i}#0", ids, train, (0.0,) * length, 1.0, 1.0))
    began = time.perf_counter()
    parts.learner.rehearse(rows)
    return (time.perf_counter() - began) * tokens / (len(rows) * length)
