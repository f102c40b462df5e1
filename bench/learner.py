"""Training: tokens per second and peak memory of whole updates, and how near they come to the device's limit.

The model has the named shape, random weights, a LoRA adapter of rank 16 on every linear layer and activation
checkpointing. Every token but a sequence's first is trained, except in the groups, whose prompts are not.

    python bench/learner.py                                   # Qwen3-4B on a GPU: 8×2K, 1×16K, groups
    python bench/learner.py --against transformers            # and transformers + PEFT on the same batches
    python bench/learner.py --shape tiny                      # anywhere, in seconds; lengths are a 16th

The limit counts the products that must be made: forward, once more in the backward pass (checkpointing), and the
gradient of the activations (the base is frozen), at 790 TFLOP/s (dense bf16 products on an H200).
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from shapes import SHAPES, TARGETS, make_model

from airloop.assemble import checkpoint_activations
from airloop.learn import batches
from airloop.learn.advantages import Batch
from airloop.learn.batches import PackedPlan, Row, micro_batches
from airloop.learn.learner import Learner, LearnerSettings
from airloop.models.head import logits_head
from airloop.policy import Policy

PEAK = 790e12
NEVER = 1 << 60
# FlashAttention's backward is five products where the forward is two.
ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True)
class Case:
    name: str
    sequences: int
    prompt: int  # shared by all of them
    reply: int
    share: bool = True


CASES = [
    Case("8 x 2K", 8, 1, 2047),
    Case("1 x 16K", 1, 1, 16383),
    Case("group of 8, 4K + 512", 8, 4096, 512),
    Case("the same, not shared", 8, 4096, 512, share=False),
]


@dataclass
class Result:
    seconds: float
    tokens: int  # of the sequences, whether computed once or often
    gib: float


def rows_of(case: Case, vocabulary: int, scale: int) -> list[Row]:
    rng = random.Random(0)
    prompt = [rng.randrange(vocabulary) for _ in range(max(1, case.prompt // scale))]
    found = []
    for i in range(case.sequences):
        reply = [rng.randrange(vocabulary) for _ in range(case.reply // scale)]
        found.append(Row.of_reply(str(i), prompt, reply, (-12.0,) * len(reply), rng.uniform(-1, 1), 1 / 8))
    return found


def measure(step: Callable[[], object], tokens: int, device: torch.device, repeat: int) -> Result:
    """The median of `repeat` steps after two that compile and warm up."""
    for _ in range(2):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return Result(sorted(times)[len(times) // 2], tokens, peak_gib(device))


def peak_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def ours(policy: Policy, case: Case, rows: list[Row], options: argparse.Namespace) -> Result:
    learner = Learner(policy, LearnerSettings(token_budget=options.budget, lr=1e-6))
    batch = Batch(tuple(rows), {}, len(rows))
    worth = batches.WORTH_SHARING
    batches.WORTH_SHARING = worth if case.share else NEVER
    try:
        return measure(lambda: learner.update(batch), sum(len(r.tokens) for r in rows), policy.device, options.repeat)
    finally:
        batches.WORTH_SHARING = worth


def flops(policy: Policy, case: Case, rows: list[Row], budget: int) -> float:
    config = policy.model.config
    linear = sum(p.numel() for n, p in policy.decoder.named_parameters() if p.dim() > 1 and "embed" not in n)
    worth = batches.WORTH_SHARING
    batches.WORTH_SHARING = worth if case.share else NEVER
    total = 0.0
    for part in micro_batches(rows, budget):
        plan = PackedPlan(part, torch.device("cpu"))
        attention = 4 * plan.pairs * config.num_attention_heads * config.head_dim * config.num_hidden_layers
        total += 2 * linear * part.computed_tokens * 3 + attention * (2 + ATTENTION_BACKWARD)
        total += 2 * config.vocab_size * config.hidden_size * len(plan.targets) * 2
    batches.WORTH_SHARING = worth
    return total


def theirs(case: Case, rows: list[Row], options: argparse.Namespace) -> Result:
    """transformers' model and loss with PEFT's adapter and torch's AdamW, all sequences in one batch."""
    from peft import LoraConfig, get_peft_model

    device = torch.device(options.device)
    model, _ = make_model(options.shape, device, options.dtype)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=list(TARGETS), task_type="CAUSAL_LM")
    peft = get_peft_model(model, config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peft.train()
    optimiser = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=1e-6)
    tokens = torch.tensor([r.tokens for r in rows], device=device)
    labels = tokens.masked_fill(~torch.tensor([r.train for r in rows], device=device), -100)

    def step() -> None:
        peft(input_ids=tokens, labels=labels, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in peft.parameters() if p.requires_grad], 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return measure(step, tokens.numel(), device, options.repeat)


def line(name: str, result: Result, least: float | None, beside: str = "") -> str:
    share = f"{least / PEAK:8.3f} s {least / PEAK / result.seconds:6.0%}" if least else " " * 17
    speed = result.tokens / result.seconds
    return f"{name:32} {result.seconds:8.3f} s {speed:10,.0f} tok/s {result.gib:7.1f} GiB {share} {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-4b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--impl", choices=["auto", "hf"], default="auto", help="our own forward, or transformers'")
    parser.add_argument("--against", choices=["transformers"])
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--budget", type=int, default=16384, help="tokens in one forward and backward")
    parser.add_argument("--freq", type=int, default=1, help="checkpoint every freq-th block; 0: none")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    options.dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    device = torch.device(options.device)
    scale = 16 if options.shape == "tiny" else 1
    model, peft = make_model(options.shape, device, options.dtype, 16)
    if options.freq:
        checkpoint_activations(model, options.freq)
    policy = Policy(model, logits_head(model), peft, options.impl)
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{options.shape}, LoRA r16, {options.dtype}, on {where}; torch {torch.__version__}; sequences' tokens per s")
    print(f"{'':32} {'step':>10} {'speed':>16} {'peak':>11} {'limit':>10} {'share':>6}")
    cases = [c for c in CASES if not options.only or options.only in c.name]
    found: dict[str, Result] = {}
    for case in cases:
        rows = rows_of(case, policy.model.config.vocab_size, scale)
        found[case.name] = ours(policy, case, rows, options)
        least = flops(policy, case, rows, options.budget)
        if device.type != "cuda" or options.freq != 1:
            least = None  # the limit is that of an H200 with checkpointing
        beside = ""
        if not case.share and CASES[2].name in found:
            beside = f"sharing: {found[case.name].seconds / found[CASES[2].name].seconds:.2f}x as fast"
        print(line(case.name, found[case.name], least, beside), flush=True)
    if options.against:
        del policy, model, peft
        for case in cases:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if not case.share:
                continue
            rows = rows_of(case, SHAPES[options.shape][7], scale)
            result = theirs(case, rows, options)
            ratio = result.seconds / found[case.name].seconds
            memory = result.gib / found[case.name].gib
            print(
                line(f"transformers: {case.name}", result, None, f"ours: {ratio:.2f}x as fast, 1/{memory:.1f} memory")
            )


if __name__ == "__main__":
    main()
