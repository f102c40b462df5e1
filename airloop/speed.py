"""How fast this machine is with this model: prompt, sampled and trained tokens per second, measured in some seconds.

Nothing is timed before it has been done once: the first pass of each kind compiles kernels, captures graphs and takes
memory, which a run does once and a measurement would multiply by its length (G14).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airloop.assemble import Components

# Long enough that a pass is as efficient as a run's, short enough for a machine of 60 GFLOP/s: 20 s in all there.
PROMPT = 192
DECODED, MOST_DECODED = 6, 96  # tokens of each reply
TRAINED = 384
# A pass that takes less is made larger, so many times at a time, up to what a run's passes have: on a GPU a small one
# takes as long as one of forty times its tokens.
LONG_ENOUGH_S, LARGER = 1.0, 4
# A pass that takes less is made again, and the quicker one counts: others may use the machine just now.
AGAIN_S = 4.0
# Tokens of the passes that are not timed; of replies, enough that decoding has begun.
WARM_UP, WARM_REPLY = 32, 3


@dataclass(frozen=True)
class Speed:
    """Tokens per second: of prompts, of replies sampled side by side, and of forward and backward passes."""

    prompt: float
    decode: float
    train: float
    seconds: float = 0.0  # that measuring took
    alone: float = 0.0  # of a reply that nobody samples beside; 0: not measured
    together: int = 1  # replies that `decode` was measured with

    def __str__(self) -> str:
        return f"{self.prompt:,.0f} prompt, {self.decode:,.0f} sampled and {self.train:,.0f} trained tokens a second"

    @property
    def decoding(self) -> tuple[float, float]:
        """Seconds that a step of decoding costs by itself, and for every reply in it."""
        step, n = self.together / self.decode, self.together
        by_reply = 1 / self.decode
        if self.alone and n > 1:
            by_reply = max(0.0, (step - 1 / self.alone) / (n - 1))
        return max(0.0, step - n * by_reply), by_reply


async def warm_up(parts: Components, replies: int) -> None:
    """So many replies of a few tokens: afterwards nothing is compiled or captured any more. No prefix stays cached."""
    await _sample(parts, random.Random(1), WARM_UP, WARM_REPLY, replies)
    await parts.engine.publish(parts.engine.version)


async def measure_speed(parts: Components) -> Speed:
    """With the run's own engine and learner, which are afterwards as they were: no weight, no cached prefix and no
    random state differs."""
    began = time.perf_counter()
    rng = random.Random(0)
    o = parts.config.orchestrator
    together = max(1, min(o.batch_size, parts.engine.describe().batch))
    for replies in dict.fromkeys((1, together)):
        await warm_up(parts, replies)
    prompt = await _prompt_speed(parts, rng, max(1, o.batch_size // o.rollouts_per_example))
    decode, alone = [await _decode_speed(parts, rng, replies) for replies in (together, 1)]
    async with parts.engine.paused():
        train = _train_speed(parts, rng)
    await parts.engine.publish(parts.engine.version)
    seconds = time.perf_counter() - began
    return Speed(prompt, decode, train, seconds, alone, together)


async def _prompt_speed(parts: Components, rng: random.Random, groups: int) -> float:
    """Of so many prompts at once as a step has, or as take long enough."""
    length = min(PROMPT, parts.config.seq_len // 2)
    for count in _sizes(1, groups):
        seconds = await _best(parts, lambda: _sample(parts, rng, length, 1, count, prompts=count))  # noqa: B023 - at once
        if seconds >= LONG_ENOUGH_S:
            break
    return count * length / seconds


async def _decode_speed(parts: Components, rng: random.Random, replies: int) -> float:
    """Without what comes before the second token of each: one prompt for all, so that it is computed once, and the time
    of replies of one token is taken off."""
    begin_s = await _best(parts, lambda: _sample(parts, rng, WARM_UP, 1, replies))
    for tokens in _sizes(DECODED, min(MOST_DECODED, parts.config.seq_len // 2)):
        seconds = await _best(parts, lambda: _sample(parts, rng, WARM_UP, 1 + tokens, replies)) - begin_s  # noqa: B023
        if seconds >= LONG_ENOUGH_S:
            break
    return replies * tokens / max(seconds, 1e-6)


def _train_speed(parts: Components, rng: random.Random) -> float:
    """Of a pass as large as a run's, or as takes long enough: a GPU is not half used by a small one."""
    _train(parts, rng, WARM_UP)
    for tokens in _sizes(TRAINED, parts.learner.settings.token_budget):
        seconds = _train(parts, rng, tokens)
        if _compiles(parts) or seconds < AGAIN_S:
            seconds = min(seconds, _train(parts, rng, tokens))
        if seconds >= LONG_ENOUGH_S:
            break
    return tokens / seconds


def _sizes(least: int, most: int) -> Iterator[int]:
    size = least
    yield size
    while size < most:
        size = min(most, LARGER * size)
        yield size


async def _best(parts: Components, work: Callable[[], Awaitable[float]]) -> float:
    """What does not take long is done twice, as something else may have run; so is what may have compiled something."""
    seconds = await work()
    return min(seconds, await work()) if _compiles(parts) or seconds < AGAIN_S else seconds


def _compiles(parts: Components) -> bool:
    """Whether a pass of a new size may take seconds, once."""
    return parts.policy.device.type != "cpu"


async def _sample(
    parts: Components, rng: random.Random, length: int, tokens: int, replies: int, prompts: int = 1
) -> float:
    from airloop.engine.base import Sampling

    length = max(1, min(length, parts.config.seq_len - tokens - 1))
    asked = [rng.choices(range(parts.loaded.tokenizer.vocab_size), k=length) for _ in range(prompts)]
    began = time.perf_counter()
    generate = parts.engine.generate
    await asyncio.gather(*(generate(asked[i % prompts], Sampling(tokens, seed=i), f"{i:04d}") for i in range(replies)))
    return time.perf_counter() - began


def _train(parts: Components, rng: random.Random, tokens: int) -> float:
    """Rows of which the second half is trained, as in an episode."""
    from airloop.learn.batches import Row

    length = min(tokens, parts.config.seq_len)
    rows = []
    for i in range(-(-tokens // length)):
        ids = tuple(rng.choices(range(parts.loaded.tokenizer.vocab_size), k=length))
        half = length - length // 2
        rows.append(Row.of_reply(f"speed-{i}#0", ids[:half], ids[half:]))
    began = time.perf_counter()
    parts.learner.measure_pass(rows)
    seconds = time.perf_counter() - began
    if parts.learner.shards:  # all ranks make every pass together, so all decide alike whether there is another
        seconds = max(parts.ranks.all_gather_now(seconds, "how long a pass took"))
    return seconds * tokens / (len(rows) * length)
