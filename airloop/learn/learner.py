"""The learner: pack → forward → loss → optimiser."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from airloop.learn.advantages import Batch, token_advantages, trajectory_of
from airloop.learn.batches import MicroBatch, PackedPlan, micro_batches
from airloop.learn.forward import known_blocks, training_hidden
from airloop.learn.logprobs import frozen_head, token_logprobs
from airloop.learn.losses import LOSSES, SEQUENCE_LOSSES, LossSettings, LossTerms
from airloop.learn.optimiser import NotFinite, Optimiser, assign
from airloop.learn.parallel import Shards, idle_part, share_rows
from airloop.policy import Policy
from airloop.waits import WAITS
from airloop.world import World


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
    offload: bool = False  # masters and the optimiser's state are in the CPU's memory


@dataclass(frozen=True)
class Worst:
    """The token with the largest value of a measure: the one to look at."""

    value: float
    row: str
    place: int  # among the row's trained tokens
    token: int
    logprob: float  # by the trainer
    other: float  # by what it was compared with: the sampler, or the policy that the run started from


@dataclass
class Report:
    """What one update did. Per-token log-probs and entropies by row key go to the step's token record."""

    metrics: dict[str, float]
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    entropies: dict[str, list[float]] = field(default_factory=dict)
    worst: dict[str, Worst] = field(default_factory=dict)  # by what was measured: "kl", "gap"


class Learner:
    """Every rank of `world` calls `update` with the same whole batch. `shards`: where the weights are spread."""

    def __init__(
        self, policy: Policy, settings: LearnerSettings, world: World | None = None, shards: Shards | None = None
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.world = world or World()
        self.shards = shards
        self.optimiser = Optimiser(
            policy,
            self.world,
            shards,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            max_norm=settings.max_norm,
            offload=settings.offload,
        )
        self.parameters = self.optimiser.parameters
        self.updates = 0
        weights = self.optimiser.weights
        self._initial = [w.detach().clone() for w in weights] if settings.loss_settings.kl_beta > 0 else None

    def update(self, batch: Batch) -> Report:
        """One optimiser step per pass over the batch; the policy's version goes up by one. A gradient that is not
        finite ends it: NotFinite, on every rank, and the version stays."""
        began = time.perf_counter()
        own = list(micro_batches(share_rows(batch.rows, self.world), self.settings.token_budget))
        micro = own + self._idle(batch, own)
        report = Report({})
        old: list[Tensor | None] = [None] * len(micro)
        refusal: NotFinite | None = None
        with self._training():
            for first in [True] + [False] * (self.settings.passes - 1):
                stats = _Statistics()
                drift = None if first else self._drift(micro, old)
                for i, part in enumerate(micro):
                    WAITS.progress("the learner", f"part {i + 1} of {len(micro)}")
                    counted = i < len(own)
                    report_to = report if first and counted else None
                    old[i] = self._backward(part, old[i], drift, stats if counted else _Statistics(), report_to)
                norm = {"grad_norm": 0.0, "update_ratio": 0.0, "weights_changed": 0.0, "lr": self.rate()}
                if any(any(row.train) for row in batch.rows):  # on whichever rank
                    try:
                        norm = self._step()
                    except NotFinite as error:
                        error.moved, refusal = not first, error
                        break  # ranks leave the update together, with whole weights
                if first:
                    stats.computed = sum(m.computed_tokens for m in own)
                    stats.rows = sum(m.row_tokens for m in own)
                    stats.micro_batches = len(own)
                    report, stats = self._of_all_ranks(report, stats)
                    report.metrics.update(stats.metrics())
                    report.worst = stats.worst
                report.metrics.update(norm)
        give_back_memory()
        if refusal is not None:
            raise refusal
        self.policy.version += 1
        seconds = time.perf_counter() - began
        computed = report.metrics["tokens_computed"]
        report.metrics |= {
            "seconds": seconds,
            "tokens_per_s": computed * self.settings.passes / seconds if seconds else 0.0,
        }
        return report

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        modules_compute = known_blocks(self.policy) is None  # telling thousands of modules takes tens of milliseconds
        if modules_compute:
            self.policy.model.train()
        if self.shards:
            self.shards.scatter()
        try:
            yield
        finally:
            if modules_compute:
                self.policy.model.eval()
        if self.shards:  # not after a failure: the ranks may no longer be together, and the run ends
            self.shards.gather()

    def _idle(self, batch: Batch, own: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Over shards every forward pass takes all ranks, so all go through as many as the busiest one."""
        if self.shards is None:
            return []
        most = max(self.world.gather_now(len(own), "the number of micro-batches"))
        return [idle_part(batch.rows) for _ in range(most - len(own))]

    def _of_all_ranks(self, report: Report, stats: _Statistics) -> tuple[Report, _Statistics]:
        found = self.world.gather_now((report.logprobs, report.entropies, stats), "the update's metrics")
        logprobs = {key: values for part, _, _ in found for key, values in part.items()}
        entropies = {key: values for _, part, _ in found for key, values in part.items()}
        return Report(report.metrics, logprobs, entropies), _Statistics.sum([s for _, _, s in found])

    def logprobs(self, rows: Sequence[Any]) -> dict[str, list[float]]:
        """Trainer log-probs of the rows' trained tokens, without an update."""
        found: dict[str, list[float]] = {}
        with torch.no_grad():
            for part in micro_batches(rows, self.settings.token_budget):
                plan = PackedPlan(part, self.policy.device)
                values, _ = self._forward(plan)
                _by_row(part, plan, values, found)
        return found

    def rehearse(self, rows: Sequence[Any]) -> None:
        """A forward and backward pass whose gradients are thrown away: to see how long one takes."""
        with self._training():
            for part in micro_batches(rows, self.settings.token_budget):
                self._backward(part, None, None, _Statistics(), None)
        for parameter in self.parameters:
            parameter.grad = None

    def slopes(self, rows: Sequence[Any], weights: Mapping[str, Sequence[float]]) -> list[Tensor | None]:
        """The gradient, by what is trained, of the sum of the rows' trained log-probs, each weighted."""
        with self._training():
            for part in micro_batches(rows, self.settings.token_budget):
                plan = PackedPlan(part, self.policy.device)
                values, _ = self._forward(plan)
                if values.requires_grad:
                    each = torch.tensor([w for row in part.rows for w in weights[row.key]]).to(values)
                    (values * each).sum().backward()
        found = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return found

    def rate(self) -> float:
        warm = self.settings.warmup_steps
        return self.settings.lr * min(1.0, (self.updates + 1) / (warm + 1))

    def state(self) -> dict[str, Any]:
        """Every rank must call it; the first one's is whole, and the same for any number of ranks."""
        return {**self.optimiser.state(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state(state)
        self.updates = state["updates"]
        if self.shards:
            self.shards.gather()

    def set_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what is trained, by the model's own names."""
        self.optimiser.set_weights(tensors)
        if self.shards:
            self.shards.gather()

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """The policy as it was when the run started."""
        assert self._initial is not None
        weights = self.optimiser.weights
        current = [w.detach().clone() for w in weights]
        self._exchange(weights, self._initial)
        try:
            yield
        finally:
            self._exchange(weights, current)

    def _exchange(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        assign(weights, values)
        if self.shards:
            self.shards.forget()

    @functools.cached_property
    def _frozen_head(self) -> Tensor | None:
        return frozen_head(self.policy.head, self.policy.model)

    def _forward(self, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        # index_select, not brackets: its gradient is a sum in place, theirs sorts the places first
        hidden = training_hidden(self.policy, plan).index_select(0, plan.sources)
        vocabulary, temperature = self.policy.model.config.vocab_size, self.settings.temperature
        return token_logprobs(self.policy.head, hidden, plan.targets, temperature, vocabulary, self._frozen_head)

    def _drift(self, micro: Sequence[MicroBatch], old: Sequence[Tensor | None]) -> dict[str, float] | None:
        """Of each trajectory the mean of its tokens' log-ratios, for losses that clip trajectories as a whole.

        The rows of a trajectory may lie in several micro-batches, and each needs the mean over all of them before
        its own backward: so this is a forward pass of its own over the batch. The first pass needs none, it is 0.
        """
        if self.settings.loss not in SEQUENCE_LOSSES:
            return None
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        with torch.no_grad():
            for part, before in zip(micro, old, strict=True):
                plan = PackedPlan(part, self.policy.device)
                now, _ = self._forward(plan)
                assert before is not None
                for r, change in zip(plan.rows, (now - before).tolist(), strict=True):
                    key = trajectory_of(part.rows[r])
                    sums[key] = sums.get(key, 0.0) + change
                    counts[key] = counts.get(key, 0) + 1
        return {key: total / counts[key] for key, total in sums.items()}

    def _backward(
        self,
        part: MicroBatch,
        old: Tensor | None,
        drift: dict[str, float] | None,
        stats: _Statistics,
        report: Report | None,
    ) -> Tensor:
        plan = PackedPlan(part, self.policy.device)
        reference = None
        if self._initial is not None:
            with torch.no_grad(), self.reference():
                reference, _ = self._forward(plan)
        logprobs, entropy = self._forward(plan)
        terms = _terms(part, plan, logprobs, old, reference, drift)
        loss, parts = LOSSES[self.settings.loss](terms, self.settings.loss_settings)
        loss.backward()
        stats.add(loss, terms, entropy, parts)
        stats.find_worst(part, plan, terms)
        if report is not None:
            _by_row(part, plan, logprobs.detach(), report.logprobs)
            _by_row(part, plan, entropy, report.entropies)
        return terms.old

    def _step(self) -> dict[str, float]:
        result = self.optimiser.step(self.rate())
        self.updates += 1
        return result


def give_back_memory() -> None:
    """The activations are free, but the C library keeps them for itself in pieces that the next, differently cut
    micro-batches do not fit into: on the CPU the process would grow for several updates."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _terms(
    part: MicroBatch,
    plan: PackedPlan,
    logprobs: Tensor,
    old: Tensor | None,
    reference: Tensor | None,
    drift: dict[str, float] | None,
) -> LossTerms:
    device = logprobs.device
    sequence = None
    if drift is not None:
        sequence = torch.tensor([drift[trajectory_of(part.rows[r])] for r in plan.rows], device=device)
    sampler = [lp for row in part.rows for lp in row.trained_logprobs]
    return LossTerms(
        logprobs,
        logprobs.detach() if old is None else old,
        torch.tensor(sampler, device=device),
        reference,
        torch.tensor([a for row in part.rows for a in token_advantages(row)], device=device),
        torch.tensor([part.rows[r].weight for r in plan.rows], device=device),
        sequence,
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
        self.worst: dict[str, Worst] = {}
        self.computed = 0  # tokens, each shared prefix once
        self.rows = 0  # tokens, each shared prefix with every row
        self.micro_batches = 0

    @classmethod
    def sum(cls, parts: Sequence[_Statistics]) -> _Statistics:
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
            found = Worst(value, part.rows[plan.rows[i]].key, place, token, float(terms.old[i]), float(others[i]))
            self._keep(name, found)

    def _keep(self, name: str, found: Worst) -> None:
        if name not in self.worst or not found.value <= self.worst[name].value:  # also a NaN
            self.worst[name] = found

    def metrics(self) -> dict[str, float]:
        work = {
            "tokens_computed": self.computed,
            "tokens_shared": self.rows - self.computed,
            "micro_batches": self.micro_batches,
        }
        if not self.tokens:
            return {"loss": 0.0, "tokens_trained": 0, **work}
        gap = torch.cat(self.gaps)
        return {
            "loss": self.loss,
            "tokens_trained": self.tokens,
            **work,
            **{name: value / self.tokens for name, value in self.sums.items()},
            "logprob_gap_mean": gap.mean().item(),
            "logprob_gap_p50": gap.quantile(0.5).item(),
            "logprob_gap_p90": gap.quantile(0.9).item(),
            "logprob_gap_p99": gap.quantile(0.99).item(),
            "logprob_gap_max": gap.max().item(),
        }
