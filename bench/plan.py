"""The memory plan against what torch measures, moment by moment and part by part, on four shapes.

python bench/plan.py                        # needs a GPU; under a minute on an H200
python bench/plan.py --shapes qwen3-4b --train full --tokens 8192
python bench/plan.py --shapes tiny          # without a GPU: everything runs, nothing is measured
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rl_step import GIB, Parts, reset_peak, set_up, synchronize
from shapes import SHAPES

from airloop.config import Config
from airloop.engine.base import Sampling
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row

BAR = 0.10
FOUR = ("smollm2-135m", "smollm2-1.7b", "qwen3-4b", "qwen2.5-7b")


@dataclass
class Measured:
    """Bytes that torch's allocator had handed out: at rest after each part was made, and at the peak of each phase."""

    cuda: bool
    rest: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def now(self) -> int:
        return torch.cuda.memory_allocated() if self.cuda else 0

    def part(self, name: str, before: int) -> None:
        self.rest[name] = self.now() - before

    def phase(self, name: str, work: Callable[[], None], device: torch.device) -> None:
        reset_peak(device.type)
        work()
        synchronize(device)
        self.peak[name] = torch.cuda.max_memory_allocated() if self.cuda else 0


def make_config(name: str, options: argparse.Namespace) -> Config:
    tiny = name == "tiny"
    return Config.model_validate(
        {
            "seq_len": 256 if tiny else 2048,
            "model": {"name": name},
            "trainer": {
                "token_budget": 1024 if tiny else options.tokens,
                "model": {
                    "train": options.train,
                    "lora": {"rank": options.rank},
                    **({"ac": {"freq": options.ac}} if options.ac else {}),
                },
            },
            "orchestrator": {"batch_size": 64, "sampling": {"max_tokens": 16}},
            "inference": {"max_batch": options.batch},
        }
    )


def full_batch(parts: Parts) -> Batch:
    """Rows that fill a micro-batch to the last token, three quarters of it trained."""
    length, rng = parts.config.seq_len, random.Random(0)
    count = parts.plan.tokens // length
    train = tuple(i >= length // 4 for i in range(length))
    rows = [
        Row(
            f"{i}#0",
            tuple(rng.randrange(2, parts.shape.vocabulary) for _ in range(length)),
            train,
            (0.0,) * length,
            rng.choice([-1.0, 1.0]),
            1 / (count * length),
        )
        for i in range(count)
    ]
    return Batch(tuple(rows), {row.key: row.advantage for row in rows}, count)


def sample(parts: Parts) -> None:
    """A whole batch of prompts, long enough to fill the engine's largest step, and a few tokens of each."""
    rng = random.Random(1)
    length = parts.config.seq_len // 2
    prompts = [
        [rng.randrange(2, parts.shape.vocabulary) for _ in range(length)]
        for _ in range(parts.config.inference.max_batch)
    ]

    async def work() -> None:
        await asyncio.gather(*[parts.engine.generate(p, Sampling(16, seed=i)) for i, p in enumerate(prompts)])

    asyncio.run(work())


def measure(name: str, options: argparse.Namespace) -> tuple[Parts, Measured]:
    """Two updates with a sampling between them: after the first, everything that stays is there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = Measured(device == "cuda")
    before = found.now()
    parts = set_up(make_config(name, options), name, device)
    found.part("all but optimiser", before)
    batch = full_batch(parts)

    async def one_update() -> None:
        async with parts.engine.paused():
            parts.learner.update(batch)
        await parts.engine.publish(parts.policy.version)

    def update() -> None:
        asyncio.run(one_update())

    before = found.now()
    update()
    found.part("optimiser", before)
    found.phase("sampling", lambda: sample(parts), parts.policy.device)
    found.phase("training", update, parts.policy.device)
    return parts, found


def print_shape(name: str, parts: Parts, found: Measured) -> bool:
    made, sampling = parts.plan, parts.plan.sampling
    rows = [
        ("weights, adapters, keys", sampling.weights + sampling.adapters + sampling.key_values, "all but optimiser"),
        ("optimiser", sampling.optimiser, "optimiser"),
    ]
    good = True
    for what, planned, key in rows:
        print(f"| {name} | {what} | {planned / GIB:.2f} | {found.rest[key] / GIB:.2f} | |")
    for what, planned, key in (
        ("sampling", made.sampling_peak, "sampling"),
        (f"training ({'keys kept' if made.keep_kv else 'keys given back'})", made.training_peak, "training"),
        ("**peak**", made.peak, ""),
    ):
        measured = found.peak[key] if key else max(found.peak.values())
        off = f"{planned / measured - 1:+.1%}" if measured else "not measured"
        print(f"| {name} | {what} | {planned / GIB:.2f} | {measured / GIB:.2f} | {off} |")
        good &= bool(key) or not measured or abs(planned / measured - 1) <= BAR
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(FOUR))
    parser.add_argument("--train", choices=["lora", "full"], default="lora")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--ac", type=int, default=1, help="checkpoint every n-th block; 0: none")
    parser.add_argument("--batch", type=int, default=16, help="sequences decoded at once")
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: nothing is measured"
    print(f"{machine}, torch {torch.__version__}, {options.train}, {time.strftime('%Y-%m-%d')}\n")
    print("| shape | | planned GiB | measured GiB | planned / measured - 1 |\n|---|---|---|---|---|")
    good = True
    for name in options.shapes:
        began = time.perf_counter()
        parts, found = measure(name, options)
        good &= print_shape(name, parts, found)
        training = [("log-probs", parts.plan.log_probs), ("backward", parts.plan.backward)]
        detail = ", ".join(f"{m.activations / GIB:.2f} + {m.logits / GIB:.2f} at {what}" for what, m in training)
        print(f"| {name} | activations + logits: {detail}; {time.perf_counter() - began:.0f} s | | | |")
        asyncio.run(parts.engine.close())
        del parts
        gc.collect()
    if torch.cuda.is_available():
        print(f"\n{'every peak is' if good else 'NOT every peak is'} within {BAR:.0%} of the plan")


if __name__ == "__main__":
    main()
