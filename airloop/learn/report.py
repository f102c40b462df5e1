"""What an update did, in numbers: sums over micro-batches, ranks and passes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from airloop.learn.batches import MicroBatch, PackedPlan
    from airloop.learn.losses import LossTerms

# Means over the tokens as they were sampled; whatever else a loss tells of its tokens is what it did to them.
OF_SAMPLED = ("entropy", "importance", "cut", "cut_geo", "cut_sequence")


@dataclass(frozen=True)
class LargestDifference:
    """The token with the largest value of a measure: the one to look at."""

    value: float
    row: str
    place: int  # among the row's trained tokens
    token: int
    logprob: float  # by the trainer
    other: float  # by what it was compared with: the sampler, or the policy that the run started from


@dataclass
class Report:
    """What one update did. Log-probs and entropies of trained tokens, by row key, go to the step's token record."""

    metrics: dict[str, float]
    logprobs: dict[str, np.ndarray] = field(default_factory=dict)
    entropies: dict[str, np.ndarray] = field(default_factory=dict)
    worst: dict[str, LargestDifference] = field(default_factory=dict)  # by what was measured: "kl", "gap"


def over_passes(sampled: Mapping[str, float], passes: Sequence[Statistics]) -> dict[str, float]:
    """What is said of the sampled tokens is of the first pass, before anything has moved; what the loss and its
    clipping did is the mean over all."""
    found = [stats.metrics() for stats in passes]
    names = ["loss", *(name for name in passes[0].sums if name not in OF_SAMPLED)]
    moved = {name: statistics.fmean(m[name] for m in found) for name in names}
    return found[0] | dict(sampled) | moved


def over_steps(steps: Sequence[Mapping[str, float]], lr: float) -> dict[str, float]:
    """The optimiser's, one a pass. How far the weights went is a sum: none of them is as if the others were not."""
    if not steps:
        return {"grad_norm": 0.0, "update_ratio": 0.0, "weights_changed": 0.0, "lr": lr}
    columns = {name: [step[name] for step in steps] for name in steps[0]}
    return {
        "grad_norm": statistics.fmean(columns["grad_norm"]),
        "grad_norm_max": max(columns["grad_norm"]),
        "update_ratio": sum(columns["update_ratio"]),
        "weights_changed": max(columns["weights_changed"]),
        "lr": lr,
    }


class Statistics:
    """Sums over micro-batches, turned into the update's metrics."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.tokens = 0
        self.sums: dict[str, float] = {}
        self.gaps: list[Tensor] = []
        self.worst: dict[str, LargestDifference] = {}
        self.computed = 0  # tokens, each shared prefix once
        self.rows = 0  # tokens, each shared prefix with every row
        self.micro_batches = 0

    @classmethod
    def sum(cls, parts: Sequence[Statistics]) -> Statistics:
        """Those of all ranks together, on every rank."""
        total = cls()
        for part in parts:
            total.loss += part.loss
            total.tokens += part.tokens
            total.gaps += part.gaps
            total.computed += part.computed
            total.rows += part.rows
            total.micro_batches += part.micro_batches
            for name, value in part.sums.items():
                total.sums[name] = total.sums.get(name, 0.0) + value
            for name, worst in part.worst.items():
                total._keep(name, worst)
        return total

    def add(self, loss: Tensor, terms: LossTerms, entropy: Tensor, parts: dict[str, Tensor]) -> None:
        n = len(terms.logprobs)
        self.loss += loss.item()
        self.tokens += n
        self.gaps.append((terms.old - terms.sampler).abs().cpu())
        for name, value in {"entropy": entropy.mean(), **parts}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.item() * n

    def find_worst(self, part: MicroBatch, plan: PackedPlan, terms: LossTerms) -> None:
        """Between the trainer and the sampler, and from the policy that the run started from."""
        measures = {"gap": ((terms.old - terms.sampler).abs(), terms.sampler)}
        if terms.reference is not None:
            change = terms.reference - terms.old
            measures["kl"] = (change.exp() - change - 1, terms.reference)
        for name, (values, others) in measures.items():
            if not len(values):
                continue
            i = int(values.argmax())
            place = i - plan.rows.index(plan.rows[i])
            token, value = int(plan.targets[i]), float(values[i])
            found = LargestDifference(
                value, part.rows[plan.rows[i]].key, place, token, float(terms.old[i]), float(others[i])
            )
            self._keep(name, found)

    def _keep(self, name: str, found: LargestDifference) -> None:
        if name not in self.worst or not found.value <= self.worst[name].value:  # also a NaN
            self.worst[name] = found

    def count(self, micro: Sequence[MicroBatch]) -> None:
        self.computed = sum(m.computed_tokens for m in micro)
        self.rows = sum(m.row_tokens for m in micro)
        self.micro_batches = len(micro)

    def metrics(self) -> dict[str, float]:
        work = {
            "tokens_computed": self.computed,
            "tokens_shared": self.rows - self.computed,
            "micro_batches": self.micro_batches,
        }
        if not self.tokens:
            return {"loss": 0.0, "tokens_trained": 0, **work}
        means = {name: value / self.tokens for name, value in self.sums.items()}
        return {"loss": self.loss, "tokens_trained": self.tokens, **work, **means}

    def with_silent(self, silent: Statistics, count: int) -> dict[str, float]:
        """Entropy, correction and gap of all sampled tokens: those that are trained on, and the `count` others, of
        which `silent` has looked at some. Without these a policy that has become sure of itself where it no longer
        learns would seem as unsure as ever."""
        parts = [(self, float(self.tokens)), (silent, float(count))]
        parts = [(stats, tokens) for stats, tokens in parts if stats.tokens]
        total = sum(tokens for _, tokens in parts)
        if not total:
            return {}
        means = {
            name: sum(stats.sums[name] / stats.tokens * tokens for stats, tokens in parts) / total
            for name in OF_SAMPLED
            if all(name in stats.sums for stats, _ in parts)
        }
        weights = torch.cat([torch.full((stats.tokens,), tokens / stats.tokens) for stats, tokens in parts])
        return means | _gaps(torch.cat([gap for stats, _ in parts for gap in stats.gaps]), weights)


def _gaps(gaps: Tensor, weights: Tensor) -> dict[str, float]:
    """By sorting: torch's own quantile takes 16 million values at most."""
    ordered, order = gaps.sort()
    reached = weights[order].double().cumsum(0)
    places = {name: share * reached[-1] for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    found = {name: ordered[min(int(torch.searchsorted(reached, x)), len(ordered) - 1)] for name, x in places.items()}
    found |= {"mean": (gaps.double() * weights).sum() / reached[-1], "max": ordered[-1]}
    return {f"logprob_gap_{name}": float(value) for name, value in found.items()}
