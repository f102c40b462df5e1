"""The learner: pack → forward → loss → optimiser."""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from air.errors import AirError
from air.learn.advantages import Batch
from air.learn.batches import MicroBatch, PackedPlan, micro_batches
from air.learn.logprobs import token_logprobs
from air.learn.losses import LOSSES, LossSettings, LossTerms
from air.policy import Policy


@dataclass(frozen=True)
class LearnerSettings:
    lr: float = 1e-4
    weight_decay: float = 0.0
    max_norm: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_steps: int = 0
    loss: str = "grpo"
    loss_settings: LossSettings = field(default_factory=LossSettings)
    passes: int = 1
    temperature: float = 1.0
    token_budget: int = 4096


@dataclass
class Report:
    """What one update did. Per-token log-probs by row key go to the step's token record."""

    metrics: dict[str, float]
    logprobs: dict[str, list[float]] = field(default_factory=dict)


class Learner:
    def __init__(self, policy: Policy, settings: LearnerSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.parameters = [p for _, p in policy.trainable()]
        # bf16 cannot hold steps of a usual size (F5), so the optimiser works on fp32 masters where needed.
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.parameters
        ]
        self.optimiser = torch.optim.AdamW(
            self._masters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self.updates = 0
        self._initial = [p.detach().clone() for p in self.parameters] if settings.loss_settings.kl_beta > 0 else None

    def update(self, batch: Batch) -> Report:
        """One optimiser step per pass over the batch; the policy's version goes up by one."""
        began = time.perf_counter()
        micro = list(micro_batches(batch.rows, self.settings.token_budget))
        report = Report({})
        old: list[Tensor | None] = [None] * len(micro)
        self.policy.model.train()
        try:
            for first in [True] + [False] * (self.settings.passes - 1):
                stats = _Statistics()
                for i, part in enumerate(micro):
                    old[i] = self._backward(part, old[i], stats, report if first else None)
                norm = self._step() if micro else {"grad_norm": 0.0, "update_ratio": 0.0, "lr": self.rate()}
                if first:
                    report.metrics.update(stats.metrics())
                report.metrics.update(norm)
        finally:
            self.policy.model.eval()
        self.policy.version += 1
        give_back_memory()
        computed, rows = sum(m.computed_tokens for m in micro), sum(m.row_tokens for m in micro)
        seconds = time.perf_counter() - began
        report.metrics |= {
            "tokens_computed": computed,
            "tokens_shared": rows - computed,
            "micro_batches": len(micro),
            "seconds": seconds,
            "tokens_per_s": computed * self.settings.passes / seconds if seconds else 0.0,
        }
        return report

    def logprobs(self, rows: Sequence[Any]) -> dict[str, list[float]]:
        """Trainer log-probs of the rows' trained tokens, without an update."""
        found: dict[str, list[float]] = {}
        with torch.no_grad():
            for part in micro_batches(rows, self.settings.token_budget):
                plan = PackedPlan(part, self.policy.device)
                values, _ = self._forward(plan)
                _by_row(part, plan, values, found)
        return found

    def rate(self) -> float:
        warm = self.settings.warmup_steps
        return self.settings.lr * min(1.0, (self.updates + 1) / (warm + 1))

    def state(self) -> dict[str, Any]:
        return {
            "optimiser": self.optimiser.state_dict(),
            "updates": self.updates,
            "masters": self._own_masters(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state["optimiser"])
        self.updates = state["updates"]
        own = [m for m, p in zip(self._masters, self.parameters, strict=True) if m is not p]
        for master, saved in zip(own, state["masters"], strict=True):
            master.data.copy_(saved)

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """The policy as it was when the run started."""
        assert self._initial is not None
        current = [p.detach().clone() for p in self.parameters]
        _assign(self.parameters, self._initial)
        try:
            yield
        finally:
            _assign(self.parameters, current)

    def _own_masters(self) -> list[Tensor]:
        return [m.detach() for m, p in zip(self._masters, self.parameters, strict=True) if m is not p]

    def _forward(self, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        hidden = self.policy.hidden(plan)[plan.sources]
        vocabulary = self.policy.model.config.vocab_size
        return token_logprobs(self.policy.head, hidden, plan.targets, self.settings.temperature, vocabulary)

    def _backward(self, part: MicroBatch, old: Tensor | None, stats: _Statistics, report: Report | None) -> Tensor:
        plan = PackedPlan(part, self.policy.device)
        reference = None
        if self._initial is not None:
            with torch.no_grad(), self.reference():
                reference, _ = self._forward(plan)
        logprobs, entropy = self._forward(plan)
        terms = _terms(part, plan, logprobs, old, reference)
        loss, parts = LOSSES[self.settings.loss](terms, self.settings.loss_settings)
        loss.backward()
        stats.add(loss, terms, entropy, parts)
        if report is not None:
            _by_row(part, plan, logprobs.detach(), report.logprobs)
        return terms.old

    def _step(self) -> dict[str, float]:
        for master, parameter in zip(self._masters, self.parameters, strict=True):
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self.settings.max_norm).item()
        if not math.isfinite(norm):
            raise AirError(
                f"The gradient's norm is {norm}: no update was made, the weights are as they were.",
                "lower trainer.optim.lr; the step's episodes are saved.",
            )
        before = [m.detach().clone() for m in self._masters]
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        moved = math.sqrt(sum(((m.detach() - b) ** 2).sum().item() for m, b in zip(self._masters, before, strict=True)))
        size = math.sqrt(sum((b**2).sum().item() for b in before))
        _assign(self.parameters, self._masters)
        result = {"grad_norm": norm, "update_ratio": moved / max(size, 1e-12), "lr": self.rate()}
        self.updates += 1
        return result


def give_back_memory() -> None:
    """The activations are free, but the C library keeps them for itself in pieces that the next, differently cut
    micro-batches do not fit into: on the CPU the process would grow for several updates."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _assign(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            if target is not value:
                target.data.copy_(value)


def _terms(
    part: MicroBatch, plan: PackedPlan, logprobs: Tensor, old: Tensor | None, reference: Tensor | None
) -> LossTerms:
    device = logprobs.device
    sampler = [lp for row in part.rows for lp, t in zip(row.logprobs, row.train, strict=True) if t]
    return LossTerms(
        logprobs,
        logprobs.detach() if old is None else old,
        torch.tensor(sampler, device=device),
        reference,
        torch.tensor([part.rows[r].advantage for r in plan.rows], device=device),
        torch.tensor([part.rows[r].weight for r in plan.rows], device=device),
    )


def _by_row(part: MicroBatch, plan: PackedPlan, values: Tensor, into: dict[str, list[float]]) -> None:
    for r, value in zip(plan.rows, values.tolist(), strict=True):
        into.setdefault(part.rows[r].key, []).append(value)


class _Statistics:
    """Sums over micro-batches, turned into the update's metrics."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.tokens = 0
        self.sums: dict[str, float] = {}
        self.gaps: list[Tensor] = []

    def add(self, loss: Tensor, terms: LossTerms, entropy: Tensor, parts: dict[str, Tensor]) -> None:
        n = len(terms.logprobs)
        self.loss += loss.item()
        self.tokens += n
        self.gaps.append((terms.old - terms.sampler).abs().cpu())
        for name, value in {"entropy": entropy.mean(), **parts}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.item() * n

    def metrics(self) -> dict[str, float]:
        if not self.tokens:
            return {"loss": 0.0, "tokens_trained": 0}
        gap = torch.cat(self.gaps)
        return {
            "loss": self.loss,
            "tokens_trained": self.tokens,
            **{name: value / self.tokens for name, value in self.sums.items()},
            "logprob_gap_mean": gap.mean().item(),
            "logprob_gap_p99": gap.quantile(0.99).item(),
            "logprob_gap_max": gap.max().item(),
        }
