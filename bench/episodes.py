"""Sampling: our embedded engine and transformers.generate on the same model, one after the other in one run.

The workload is what training asks for: `--episodes` multi-turn episodes at once in groups that share a prompt;
each turn samples `--new` tokens, then a tool answers with `--observation` tokens. transformers.generate gets
each turn as one left-padded batch, as trainers built on it do; it computes the whole conversation again.

    python bench/episodes.py                     # SmolLM2-135M with a LoRA adapter
    python bench/episodes.py --lora none --turns 1
    python bench/episodes.py --lora peft         # PEFT's own forward in our engine, to compare with ours
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import time

import torch

from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn import lora
from airloop.models.head import logits_head
from airloop.models.loading import load
from airloop.models.sources import DEFAULT_MODEL
from airloop.policy import Policy

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def conversations(options: argparse.Namespace, vocabulary: int) -> tuple[list[list[int]], list[list[list[int]]]]:
    rng = random.Random(0)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(100, vocabulary - 100) for _ in range(n)]

    prompts = [tokens(options.prompt) for _ in range(options.episodes // options.group)]
    observations = [[tokens(options.observation) for _ in range(options.turns)] for _ in range(options.episodes)]
    return [prompts[i // options.group] for i in range(options.episodes)], observations


async def ours(policy: Policy, options: argparse.Namespace, starts: list, observations: list) -> tuple[float, float]:
    context = options.prompt + options.turns * (options.new + options.observation)
    engine = EmbeddedEngine(policy, context=context, max_batch=options.episodes)

    async def episode(i: int) -> None:
        tokens = list(starts[i])
        for turn in range(options.turns):
            found = await engine.generate(tokens, Sampling(options.new, seed=i * 100 + turn))
            tokens += [*found.token_ids, *observations[i][turn]]

    began = time.perf_counter()
    await asyncio.gather(*[episode(i) for i in range(options.episodes)])
    seconds = time.perf_counter() - began
    cached = engine.counters.cached / engine.counters.prompt
    await engine.close()
    return seconds, cached


@torch.no_grad()
def theirs(model: torch.nn.Module, options: argparse.Namespace, starts: list, observations: list) -> float:
    model.set_attn_implementation("sdpa")
    model.config.use_cache = True
    device = next(model.parameters()).device
    tokens = torch.tensor(starts, device=device)
    began = time.perf_counter()
    for turn in range(options.turns):
        tokens = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=options.new,
            min_new_tokens=options.new,
            pad_token_id=0,
        )
        tokens = torch.cat([tokens, torch.tensor([o[turn] for o in observations], device=device)], 1)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--lora", choices=["ours", "peft", "none"], default="ours")
    for name, default in [
        ("episodes", 32),
        ("group", 8),
        ("turns", 4),
        ("prompt", 220),
        ("new", 24),
        ("observation", 30),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeat", type=int, default=2, help="take the best of this many runs of each side")
    options = parser.parse_args()

    loaded = load(options.model, dtype=options.dtype)
    model = loaded.model
    if options.lora == "peft":
        lora.LoraLinear.forward = lora.PeftLinear.forward  # type: ignore[method-assign]
    if options.lora != "none":
        lora.attach_lora(model, 16, 32, TARGETS)
    policy = Policy(model, logits_head(model))
    starts, observations = conversations(options, model.config.vocab_size)
    new = options.episodes * options.turns * options.new
    mine, other, cached = [], [], 0.0
    for _ in range(options.repeat):
        model.set_attn_implementation("air")
        seconds, cached = asyncio.run(ours(policy, options, starts, observations))
        mine.append(seconds)
        other.append(theirs(model, options, starts, observations))
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"{loaded.dtype}, lora {options.lora}, {time.strftime('%Y-%m-%d')}"
    )
    print(
        f"{options.episodes} episodes × {options.turns} turns × {options.new} new tokens, prompts of {options.prompt}"
    )
    print(f"{'':24s}{'seconds':>9s}{'new tok/s':>11s}")
    print(f"{'transformers.generate':24s}{min(other):9.1f}{new / min(other):11.0f}")
    print(f"{'air embedded':24s}{min(mine):9.1f}{new / min(mine):11.0f}   {cached:.0%} of prompt tokens from the cache")
    print(f"ratio {min(other) / min(mine):.2f}")


if __name__ == "__main__":
    main()
