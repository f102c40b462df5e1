"""The peak of one rank of several that train an adapter on long contexts, its base in shards, on one GPU with a cap.

python bench/long_context.py --cap-gib 24       # the Qwen3-4B shape, 32,768 tokens, rank 0 of 8
python bench/long_context.py --shape tiny --tokens 2000 --ranks 4      # without a GPU: all runs, nothing is measured

The other ranks are not there: torch's `fake` process group answers with this rank's own shards, so what is computed
means nothing, and memory is what it would be. The time between GPUs is not in it, nor is sampling.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time

import torch
import torch.distributed as dist
from rl_step import GIB, gpu_bytes, reset_peak, synchronize
from shapes import SHAPES, make_model
from torch.testing._internal.distributed.fake_pg import FakeStore

from airloop.assemble import learner_settings, make_policy
from airloop.config import Config
from airloop.learn.advantages import Batch
from airloop.learn.base_shards import shard
from airloop.learn.batches import Row
from airloop.learn.learner import Learner
from airloop.models.loaded import Loaded
from airloop.plan import plan, read_shape
from airloop.ranks import Ranks

BAR = 0.10


class FirstOf(Ranks):
    """The first of `size` ranks, whose others never answer: sums and figures are its own."""

    def __init__(self, size: int) -> None:
        self.size = size


def make_config(options: argparse.Namespace) -> Config:
    return Config.model_validate(
        {
            "seq_len": options.tokens,
            "model": {"name": options.shape},
            "trainer_gpu_ids": list(range(options.ranks)),
            "trainer": {
                "token_budget": options.tokens,
                "model": {"ac": {"freq": 1}, "shard": not options.whole},
            },
            "orchestrator": {"batch_size": 16, "rollouts_per_example": 8},
        }
    )


def long_batch(tokens: int, vocabulary: int, ranks: int) -> Batch:
    """One row of full length for each rank, three quarters of it trained."""
    rng = random.Random(0)
    begun = tokens // 4
    texts = [tuple(rng.choices(range(vocabulary), k=tokens)) for _ in range(ranks)]
    weight = 1 / (ranks * tokens)
    rows = [Row.of_reply(f"{i}#0", text[:begun], text[begun:], weight=weight) for i, text in enumerate(texts)]
    return Batch(tuple(rows), {row.key: row.advantage for row in rows}, ranks)


def measure(options: argparse.Namespace) -> bool:
    """Two updates: after the first, everything that stays is there. Whether the plan was kept."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda, config, ranks = device.type == "cuda", make_config(options), FirstOf(options.ranks)
    dtype = torch.bfloat16 if cuda else torch.float32
    model, _ = make_model(options.shape, device, dtype)
    nothing: object = None  # a tokenizer: no text is involved
    policy = make_policy(config, Loaded(model, nothing, options.shape, None, dtype, device))  # type: ignore[arg-type]
    made = plan(config, read_shape(policy.model), int(options.cap_gib * GIB))
    learner = Learner(policy, learner_settings(config), ranks, shard(policy, ranks, base=not options.whole))
    batch = long_batch(options.tokens, SHAPES[options.shape][7], options.ranks)
    gc.collect()
    if cuda:
        torch.cuda.set_per_process_memory_fraction(min(1.0, made.available / gpu_bytes("cuda")))
    seconds = 0.0
    for _ in range(2):
        reset_peak(device.type)
        began = time.perf_counter()
        learner.update(batch)
        synchronize(device)
        seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    off = f"{made.training_peak / peak - 1:+.1%}" if peak else "not measured"
    print("| shape | tokens | ranks | base | planned GiB | measured GiB | planned / measured - 1 | s |")
    print("|---|---|---|---|---|---|---|---|")
    planned, found = f"{made.training_peak / GIB:.2f}", f"{peak / GIB:.2f}" if peak else "–"
    base = "whole" if options.whole else "in shards"
    row = (options.shape, made.tokens, options.ranks, base, planned, found, off, f"{seconds:.1f}")
    print(f"| {' | '.join(map(str, row))} |")
    print(f"\nthe cap leaves torch {made.available / GIB:.2f} GiB of {options.cap_gib:g}")
    return not peak or abs(made.training_peak / peak - 1) <= BAR


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-4b")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--cap-gib", type=float, default=24.0, help="the memory of the GPU that is stood in for")
    parser.add_argument("--whole", action="store_true", help="a whole base on every rank")
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: nothing is measured"
    print(f"{machine}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}\n")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=options.ranks)
    try:
        sys.exit(0 if measure(options) else "the plan is off by more than a tenth")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
