"""On a CUDA machine: the same code path, checked against transformers, then a short RL run of a tiny model.

python bench/gpu_smoke.py
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from airloop.config import load_config
from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.batches import Row
from airloop.learn.learner import Learner, LearnerSettings
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy
from airloop.training import start
from airloop.watch.display.display import Display


def engine_agrees(kind: str) -> tuple[int, float]:
    """Greedy tokens equal to transformers' and, for sampled ones, the largest engine/trainer log-prob gap (fp32)."""
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(rng.randint(5, 90))] for _ in range(20)]
    model = tiny_model(kind, seed=1).model.cuda()
    with torch.no_grad():
        wanted = [
            model.generate(
                torch.tensor([p], device="cuda"),
                attention_mask=torch.ones(1, len(p), device="cuda", dtype=torch.long),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(p) :].tolist()
            for p in prompts
        ]
    policy = Policy(model, logits_head(model))

    async def work() -> tuple[list[list[int]], list[Row]]:
        engine = EmbeddedEngine(policy, context=256, page_size=16)
        greedy = await asyncio.gather(*[engine.generate(p, Sampling(12, temperature=0)) for p in prompts])
        drawn = await asyncio.gather(*[engine.generate(p, Sampling(12, seed=i)) for i, p in enumerate(prompts)])
        rows = [
            Row.of_reply(str(i), p, g.token_ids, g.logprobs)
            for i, (p, g) in enumerate(zip(prompts, drawn, strict=True))
        ]
        await engine.close()
        return [list(g.token_ids) for g in greedy], rows

    found, rows = asyncio.run(work())
    trainer = Learner(policy, LearnerSettings()).logprobs(rows)
    gap = max(abs(a - b) for r in rows for a, b in zip(trainer[r.key], r.logprobs[-12:], strict=True))
    return sum(a == b for a, b in zip(found, wanted, strict=True)), gap


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for kind in ("llama", "qwen2", "qwen3", "mistral"):
        equal, gap = engine_agrees(kind)
        print(f"{kind:8s} greedy equal to transformers: {equal}/20   engine-trainer gap {gap:.1e}")
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        config = load_config(["arith", "--model.device", "cuda", "--output_dir", directory])
        finished = start(config, Display(Console(quiet=True), quiet=True))
        evals = {m["name"]: m["reward"]["mean"] for m in finished.run.metrics("eval")}
        last = finished.run.metrics("train")[-1]["learner"]
        print(f"arith on CUDA: {evals['before']:.2f} → {evals['after']:.2f} in {time.perf_counter() - began:.0f} s")
        print({k: round(v, 5) for k, v in last.items()})
        print(sorted(p.name for p in Path(finished.run.path).iterdir()))


if __name__ == "__main__":
    main()
