"""Sampling and training in turns, many times: memory must not grow, whether the key/values are given back or kept.

python bench/alternate.py                    # 1,000 turns of a SmolLM2-135M shape on a GPU
python bench/alternate.py --shape tiny --turns 50
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import time

import torch
from shapes import SHAPES, make_model

from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row
from airloop.learn.learner import Learner, LearnerSettings
from airloop.models.head import logits_head
from airloop.policy import Policy

EPISODES = 8


async def turn(engine: EmbeddedEngine, learner: Learner, rng: random.Random, vocabulary: int) -> None:
    """Lengths differ from turn to turn, so that every allocation does too."""
    length, new = rng.randint(20, 200), rng.randint(4, 24)
    prompts = [[rng.randrange(2, vocabulary) for _ in range(length)] for _ in range(EPISODES)]
    jobs = [engine.generate(p, Sampling(new, seed=i)) for i, p in enumerate(prompts)]
    rows = [
        Row.of_reply(f"{i}#0", p, g.token_ids, g.logprobs, 1.0 if i % 2 else -1.0, 1e-3)
        for i, (p, g) in enumerate(zip(prompts, await asyncio.gather(*jobs), strict=True))
    ]
    async with engine.paused():
        learner.update(Batch(tuple(rows), {}, EPISODES))
    await engine.publish(learner.policy.version)


def memory(device: torch.device) -> tuple[float, float, float]:
    """MiB: the most that torch handed out at once since the last reading, and the most it took from the GPU for that,
    fragments included; and what is gone from the GPU now, whoever has it (on a CPU: the process at its most)."""
    if device.type != "cuda":
        return 0.0, 0.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    free, total = torch.cuda.mem_get_info()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return peak / 2**20, reserved / 2**20, (total - free) / 2**20


async def alternate(policy: Policy, options: argparse.Namespace) -> None:
    engine = EmbeddedEngine(policy, context=256, max_batch=EPISODES, kv_tokens=8192, lend=options.lend)
    learner = Learner(policy, LearnerSettings(token_budget=1024, lr=1e-6))
    rng = random.Random(0)
    marks = {options.turns // 10 * i for i in range(1, 11)} | {1}
    began = time.perf_counter()
    print(f"{'turns':>7s}{'peak MiB':>10s}{'reserved MiB':>14s}{'in use MiB':>12s}")
    for i in range(1, options.turns + 1):
        await turn(engine, learner, rng, policy.model.config.vocab_size)
        if i in marks:
            peak, reserved, used = memory(policy.device)
            print(f"{i:7d}{peak:10.0f}{reserved:14.0f}{used:12.0f}", flush=True)
    print(f"{(time.perf_counter() - began) / options.turns * 1e3:.0f} ms a turn")
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--lend", action="store_true", help="the key/value memory is given back for every update")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, peft = make_model(options.shape, device, dtype, 8)
    asyncio.run(alternate(Policy(model, logits_head(model), peft), options))


if __name__ == "__main__":
    main()
