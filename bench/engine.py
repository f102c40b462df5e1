"""Sampling speed at the workloads others report: prompts of 512 random tokens, temperature 1, prefill included.

    python bench/engine.py                               # Qwen3-4B shape, random weights, on one GPU
    python bench/engine.py --lora 16 --groups            # with an unmerged adapter; 32 prompts × 8 samples too
    python bench/engine.py --shape smollm2-135m --workloads 256x128
    python bench/engine.py --shape tiny --workloads 4x16 # runs on a CPU
    python bench/engine.py --against transformers        # transformers.generate on the same model afterwards
    python bench/engine.py --engine URL                  # a running vLLM instead of ours

The limit: prompts at 700 TFLOP/s, then, at every step, all weights and the key/values so far at 4.3 TB/s (H200).
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import time
from dataclasses import dataclass

import httpx
import torch
from shapes import SHAPES, make_model

from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.models.head import logits_head
from airloop.policy import Policy

FLOPS, BYTES = 700e12, 4.3e12
PROMPT = 512


@dataclass(frozen=True)
class Workload:
    sequences: int
    new: int
    group: int = 1

    @property
    def name(self) -> str:
        return f"{self.sequences} × {self.new}" + (f" in groups of {self.group}" if self.group > 1 else "")

    def prompts(self, vocabulary: int, prompt: int, seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        distinct = [
            [rng.randrange(2, vocabulary) for _ in range(prompt)] for _ in range(-(-self.sequences // self.group))
        ]
        return [distinct[i // self.group] for i in range(self.sequences)]

    def limit(self, policy: Policy, prompt: int) -> float:
        """New tokens per second if the GPU did nothing but the arithmetic of prompts and the reading of memory."""
        embeddings = policy.model.get_input_embeddings().weight.numel()
        base = sum(p.numel() for n, p in policy.model.named_parameters() if "lora_" not in n) - embeddings
        head = embeddings if policy.model.config.tie_word_embeddings else 0
        computed = self.sequences // self.group * prompt
        seconds = computed * 2 * base / FLOPS
        for step in range(self.new):
            seconds += ((base + head) * 2 + self.sequences * (prompt + step) * policy.kv_bytes_per_token) / BYTES
        return self.sequences * self.new / seconds


async def sample(engine: EmbeddedEngine, prompts: list[list[int]], new: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*[engine.generate(p, Sampling(new, seed=i)) for i, p in enumerate(prompts)])
    return time.perf_counter() - began


async def ours(policy: Policy, options: argparse.Namespace, workloads: list[Workload]) -> None:
    vocabulary = policy.model.config.vocab_size
    context = options.prompt + max(w.new for w in workloads)
    most = max(w.sequences for w in workloads)
    tokens = max(w.sequences * (options.prompt + w.new + 64) for w in workloads)
    began = time.perf_counter()
    engine = EmbeddedEngine(
        policy, context=context, max_batch=most, kv_tokens=max(tokens, context), eager=options.eager
    )
    await sample(engine, [[5, 6, 7]], 4)
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    print(f"ready after {options.load_s + time.perf_counter() - began:.1f} s (weights made in {options.load_s:.1f} s)")
    print(f"{'':28s}{'new tok/s':>10s}{'limit':>10s}{'share':>7s}{'prefill s':>11s}{'decode s':>10s}")
    for workload in workloads:
        rates = []
        for repeat in range(options.repeat + 1):  # the first run captures graphs
            engine.set_version(engine.version + 1)  # no prefix of an earlier run counts
            before = (engine.counters.prefill_s, engine.counters.decode_s)
            seconds = await sample(engine, workload.prompts(vocabulary, options.prompt, repeat), workload.new)
            split = (engine.counters.prefill_s - before[0], engine.counters.decode_s - before[1])
            rates.append((workload.sequences * workload.new / seconds, *split))
        rate, prefill, decode = max(rates[1:])
        limit = workload.limit(policy, options.prompt)
        print(f"{workload.name:28s}{rate:10.0f}{limit:10.0f}{rate / limit:7.0%}{prefill:11.2f}{decode:10.2f}")
    print(engine.describe().detail)
    await engine.close()


@torch.no_grad()
def transformers_generate(policy: Policy, options: argparse.Namespace, workloads: list[Workload]) -> None:
    model = policy.model
    model.set_attn_implementation("sdpa")
    model.config.use_cache = True
    for workload in workloads:
        prompts = torch.tensor(workload.prompts(model.config.vocab_size, options.prompt, 1), device=policy.device)
        began = time.perf_counter()
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=workload.new,
            min_new_tokens=workload.new,
            pad_token_id=0,
        )
        out[0, 0].item()
        rate = workload.sequences * workload.new / (time.perf_counter() - began)
        print(f"{'transformers ' + workload.name:28s}{rate:10.0f}")


async def served(url: str, options: argparse.Namespace, workloads: list[Workload]) -> None:
    """A vLLM (or anything with OpenAI's completions and token-id prompts) at `url`."""
    vocabulary = SHAPES[options.shape][7]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def one(prompt: list[int], new: int, seed: int) -> int:
            body = {"model": model, "prompt": prompt, "max_tokens": new, "temperature": 1.0, "seed": seed}
            reply = await client.post("/v1/completions", json={**body, "ignore_eos": True, "logprobs": 0})
            reply.raise_for_status()
            return int(reply.json()["usage"]["completion_tokens"])

        print(f"{'':28s}{'new tok/s':>10s}")
        for workload in workloads:
            for repeat in range(options.repeat + 1):
                prompts = workload.prompts(vocabulary, options.prompt, repeat)
                began = time.perf_counter()
                new = await asyncio.gather(*[one(p, workload.new, i) for i, p in enumerate(prompts)])
                rate = sum(new) / (time.perf_counter() - began)
            print(f"{workload.name:28s}{rate:10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-4b")
    parser.add_argument("--workloads", nargs="+", default=["1x128", "8x1500", "64x128", "256x128", "256x512"])
    parser.add_argument("--groups", action="store_true", help="also 256 × 128 as 32 prompts × 8 samples")
    parser.add_argument("--lora", type=int, default=None, help="rank of an unmerged adapter")
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--repeat", type=int, default=1, help="timed runs of each; the best counts")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--against", choices=["transformers"], default=None)
    parser.add_argument("--engine", default=None, metavar="URL", help="measure a running vLLM instead of ours")
    options = parser.parse_args()
    workloads = [Workload(*map(int, w.split("x"))) for w in options.workloads]
    if options.groups:
        workloads.append(Workload(256, 128, 8))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, torch {torch.__version__}, {options.shape}, lora {options.lora}, {time.strftime('%Y-%m-%d')}")
    if options.engine:
        asyncio.run(served(options.engine, options, workloads))
        return
    began = time.perf_counter()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, peft = make_model(options.shape, device, dtype, options.lora)
    if device == "cuda":
        torch.cuda.synchronize()
    options.load_s = time.perf_counter() - began
    policy = Policy(model, logits_head(model), peft)
    asyncio.run(ours(policy, options, workloads))
    if device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if options.against:
        transformers_generate(policy, options, workloads)


if __name__ == "__main__":
    main()
