"""How far log-probs are from float32: our engine's, transformers' own bf16 forward's and the trainer's, same tokens.

    python bench/exactness.py --shape smollm2-135m       # or --model NAME for real weights

The engine samples at several batch sizes; its log-probs and those of a bf16 forward by transformers are compared with
a float32 forward of the same tokens. The gap between engine and trainer is reported on its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random

import torch
from shapes import SHAPES, make_model

from airloop.engine.base import Generation, Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.batches import Row
from airloop.learn.learner import Learner, LearnerSettings
from airloop.models.head import logits_head
from airloop.models.loading import load
from airloop.policy import Policy


async def sampled(policy: Policy, prompts: list[list[int]], new: int, batch: int) -> list[Generation]:
    engine = EmbeddedEngine(policy, context=len(prompts[0]) + new, max_batch=batch)
    found = await asyncio.gather(*[engine.generate(p, Sampling(new, seed=i)) for i, p in enumerate(prompts)])
    await engine.close()
    return list(found)


@torch.no_grad()
def forward(model: torch.nn.Module, prompts: list[list[int]], found: list[Generation]) -> torch.Tensor:
    rows = []
    for prompt, generation in zip(prompts, found, strict=True):
        tokens = torch.tensor([[*prompt, *generation.token_ids]], device=next(model.parameters()).device)
        logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        rows.append(logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0])
    return torch.cat(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2-135m")
    parser.add_argument("--model", default=None, help="a model with real weights instead of a shape")
    parser.add_argument("--lora", type=int, default=None)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--new", type=int, default=100)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.model:
        model, exact = (load(options.model, device=device, dtype=d).model for d in ("bfloat16", "float32"))
    else:
        model = make_model(options.shape, device, torch.bfloat16, options.lora)[0]
        exact = make_model(options.shape, device, torch.float32, options.lora)[0]
        exact.load_state_dict(model.state_dict())  # the same numbers, in more room
    policy = Policy(model, logits_head(model))
    rng = random.Random(0)
    vocabulary = model.config.vocab_size
    print(f"{options.model or options.shape}, lora {options.lora}: mean |log-prob - float32's|")
    print(f"{'batch':>6s}{'engine':>10s}{'transformers':>14s}{'ratio':>7s}{'engine-trainer':>16s}{'trainer':>10s}")
    for batch in options.batches:
        prompts = [[rng.randrange(2, vocabulary) for _ in range(options.prompt)] for _ in range(max(batch, 4))]
        model.set_attn_implementation("air")
        found = asyncio.run(sampled(policy, prompts, options.new, batch))
        engine = torch.tensor([x for g in found for x in g.logprobs], device=device)
        rows = [
            Row.of_reply(str(i), p, g.token_ids, g.logprobs, 0.0, 0.0)
            for i, (p, g) in enumerate(zip(prompts, found, strict=True))
        ]
        by_row = Learner(policy, LearnerSettings(token_budget=8192)).logprobs(rows)
        trainer = torch.tensor([x for i in range(len(rows)) for x in by_row[str(i)]], device=device)
        model.set_attn_implementation("sdpa")
        theirs, wanted = forward(model, prompts, found), forward(exact, prompts, found)
        a, b, c = ((x - wanted).abs().mean().item() for x in (engine, theirs, trainer))
        gap = (engine - trainer).abs().mean().item()
        print(f"{batch:6d}{a:10.5f}{b:14.5f}{a / b:7.2f}{gap:16.5f}{c:10.5f}")


if __name__ == "__main__":
    main()
