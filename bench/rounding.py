"""How far from the truth is each way to compute the same log-probs, in a network that an update has just changed?

    python bench/rounding.py --model qwen2.5-coder-0.5b.gguf --on gpu --sets 64x4:1e-3 256x4:1e-3 32x2:1e-4

For each set-up (rank x alpha/rank : learning rate) one update like that of the doctor's proof, then replies to prompts
that begin elsewhere each time. The truth is transformers' layers in more bits; *plain* the same layers in the model's
own format; the others are the trainer's pass, whole and with parts of it taken out, and the engine. A cell is the mean
distance over that of *plain*; `4 rows` says how often four rows alone would have called a way more than four times as
far: that much is chance.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from doctor_setups import Setup, Shelf
from torch.nn.attention import SDPBackend, sdpa_kernel

from airloop.doctor import proof_tools
from airloop.doctor.case import Case
from airloop.learn.batches import Row
from airloop.learn.rounding import TIMES, exact, other_beginnings, reference

Logprobs = dict[str, list[float]]
DRAWS = 400


@dataclass(frozen=True)
class Distance:
    """Of one way from the truth: by row, a mean over its tokens."""

    way: str
    by_row: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_row)

    def far(self, plain: Distance, rows: int = 4) -> float:
        """How often `rows` of them say that it is more than TIMES as far as plain rounding."""
        chance = random.Random(0)
        picks = [chance.sample(range(len(self.by_row)), rows) for _ in range(DRAWS)]
        return statistics.fmean(
            statistics.fmean(self.by_row[i] for i in pick) > TIMES * statistics.fmean(plain.by_row[i] for i in pick)
            for pick in picks
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-qwen2")
    parser.add_argument("--on", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--env", default="gsm8k")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sets", nargs="+", default=["64x4:1e-3"], help="rank x alpha/rank : lr")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--updates", type=int, default=1)
    options = parser.parse_args()
    shelf = Shelf(options.on)
    for number, words in enumerate(options.sets):
        lora, lr = words.split(":")
        rank, ratio = lora.split("x")
        setup = Setup(
            options.model, "lora", int(rank), float(ratio), float(lr), options.dtype, options.env, seed=number
        )
        with shelf.case(setup.config()) as case:
            show(setup, measure(case, options.rows, options.updates))


def measure(case: Case, count: int, updates: int) -> list[Distance]:
    learner, prompts = case.parts.learner, proof_tools.first_prompts(case)
    with proof_tools.restored_after(case), proof_tools.at_high_temperature(case.parts):
        learner.updates = learner.settings.warmup_steps
        for _ in range(updates):
            answers = proof_tools.sample_replies(case, prompts)
            tokens = sum(len(a.generation.token_ids) for a in answers)
            proof_tools.update(case, [a.row(i, advantage=1.0, weight=1 / tokens) for i, a in enumerate(answers)])
        answers = proof_tools.sample_replies(case, other_beginnings(prompts, count), seed=100)
        rows = [answer.row(i) for i, answer in enumerate(answers)]
        return proof_tools.while_paused(case, lambda: distances(case, rows))


def distances(case: Case, rows: Sequence[Row]) -> list[Distance]:
    learner = case.parts.learner
    truth = exact(learner, rows)
    engine = {row.key: [lp for lp, train in zip(row.logprobs, row.train, strict=True) if train] for row in rows}
    found = {"plain": reference(learner, rows), "engine": engine}
    for way, context in ways(case).items():
        with context():
            found[way] = reference(learner, rows) if way.startswith("plain") else learner.logprobs(rows)
    one: Logprobs = {}
    for row in rows:
        one |= learner.logprobs([row])
    found["trainer, row by row"] = one
    return [Distance(way, [_mean(x[row.key], truth[row.key]) for row in rows]) for way, x in found.items()]


def ways(case: Case) -> dict[str, Callable[[], Any]]:
    policy = case.parts.policy
    no_kernels = lambda: mock.patch("airloop.learn.block_ops.fused", lambda x: False)  # noqa: E731
    no_flash = lambda: mock.patch("airloop.learn.batches.flash_kernel", lambda *_: None)  # noqa: E731
    return {
        "plain, attention by matrices": lambda: sdpa_kernel(SDPBackend.MATH),
        "trainer": contextlib.nullcontext,
        "trainer, torch's pieces": no_kernels,
        "trainer, masks": no_flash,
        "trainer, both": lambda: _all(no_kernels(), no_flash()),
        "trainer, two sums": lambda: mock.patch("airloop.learn.block_ops.products", _two_sums),
        'trainer, impl = "hf"': lambda: mock.patch.object(policy, "impl", "hf"),
    }


@contextlib.contextmanager
def _all(*contexts: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _two_sums(x: Any, linears: Any, residual: Any) -> Any:
    """As the trainer's pass was until 2026-11-16: the residual stream and the layer, rounded, then the adapter."""
    small = None if linears.down is None else torch.nn.functional.linear(x, linears.down)
    parts = [None] * len(linears.ups) if small is None else small.split(linears.ranks, 1)
    outs = []
    for weight, bias, up, part in zip(linears.weights, linears.biases, linears.ups, parts, strict=True):
        plain = residual is None
        out = torch.nn.functional.linear(x, weight, bias) if plain else torch.addmm(residual, x, weight.t())
        outs.append(out if up is None or part is None else out.addmm_(part, up.t()))
    return tuple(outs), small


def _mean(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.fmean(abs(x - y) for x, y in zip(a, b, strict=True))


def show(setup: Setup, found: Sequence[Distance]) -> None:
    plain = found[0]
    print(f"{setup.id}: plain rounding {plain.mean:.3g} nats a token, {len(plain.by_row)} rows")
    for distance in found[1:]:
        print(f"  {distance.way:30s} {distance.mean / plain.mean:6.2f}   4 rows: {distance.far(plain):.1%}", flush=True)


if __name__ == "__main__":
    main()
