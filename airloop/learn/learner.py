"""The learner: pack → forward → loss → optimiser."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from airloop.learn.advantages import Batch, token_advantages, trajectory_of
from airloop.learn.base_shards import BaseShards
from airloop.learn.batches import MicroBatch, PackedPlan, Row, micro_batches, sample_rows
from airloop.learn.forward import known_blocks, training_hidden
from airloop.learn.logprobs import frozen_head, token_logprobs
from airloop.learn.losses import LossSettings, LossTerms, find_loss
from airloop.learn.losses.sequence_mask import sequence_mask
from airloop.learn.optimiser import NotFinite, Optimiser, assign
from airloop.learn.parallel import Shards, idle_part, share_rows
from airloop.learn.report import Report, Statistics, over_passes, over_steps
from airloop.learn.sequence_masks import SequenceMasks, split_trajectories
from airloop.policy import Policy
from airloop.ranks import Ranks
from airloop.threads import threads_to_choose_from
from airloop.waits import WAITS

# Of episodes that are not trained on, tokens that are looked at, as a share of all.
LOOKED_AT = 0.2


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


class Learner:
    """Every one of the `ranks` calls `update` with the same whole batch. `shards`: where the weights are spread."""

    def __init__(
        self,
        policy: Policy,
        settings: LearnerSettings,
        ranks: Ranks | None = None,
        shards: Shards | BaseShards | None = None,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.ranks = ranks or Ranks()
        self.shards = shards
        self.optimiser = Optimiser(
            policy,
            self.ranks,
            shards if isinstance(shards, Shards) else None,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            max_norm=settings.max_norm,
            offload=settings.offload,
        )
        self.parameters = self.optimiser.parameters
        self.updates = 0
        pinned = policy.device.type != "cpu" or torch.are_deterministic_algorithms_enabled()
        self._threads = threads_to_choose_from(lockstep=pinned)
        weights = self.optimiser.weights
        self._initial = [w.detach().clone() for w in weights] if settings.loss_settings.kl_beta > 0 else None

    def update(self, batch: Batch, lr: float | None = None) -> Report:
        """One optimiser step per pass over the batch; the policy's version goes up by one. A gradient that is not
        finite ends it: NotFinite, on every rank, and the version stays. `lr`: a schedule's, for this step; by default
        that of the settings. While warming up it is a part of that."""
        began, rate = time.perf_counter(), self.rate(lr)
        own = list(micro_batches(share_rows(batch.rows, self.ranks), self.settings.token_budget))
        micro = own + self._idle(batch.rows, own)
        report, passes, steps = Report({}), list[Statistics](), list[dict[str, float]]()
        old: list[Tensor | None] = [None] * len(micro)
        with self._training():
            silent, references = self._look(batch), self._references(micro)
            masks = self._masks(own, micro)
            try:
                for number in range(self.settings.passes):
                    stats = Statistics()
                    drift = self._drift(micro, old) if number else None
                    for i, part in enumerate(micro):
                        WAITS.progress("the learner", f"part {i + 1} of {len(micro)}")
                        counted = i < len(own)
                        report_to = report if counted and not number else None
                        counts = stats if counted else Statistics()
                        old[i] = self._backward(part, old[i], references[i], drift, masks, counts, report_to)
                    passes.append(stats)
                    if any(any(row.train) for row in batch.rows):  # on whichever rank
                        steps.append(self.optimiser.step(rate))
                refusal = None
            except NotFinite as error:  # ranks leave the update together, with whole weights
                error.moved, refusal = bool(steps), error
        give_back_memory()
        if refusal is not None:
            raise refusal
        passes[0].count(own)
        report, (silent, *totals) = self._of_all_ranks(report, [silent, *passes])
        whole = totals[0].with_silent(silent, sum(sum(row.train) for row in batch.silent))
        report.metrics = over_passes(whole, totals) | over_steps(steps, rate)
        report.worst = totals[0].worst
        self.updates += bool(steps)
        self.policy.version += 1
        seconds = time.perf_counter() - began
        computed = report.metrics["tokens_computed"] * self.settings.passes
        report.metrics |= {"seconds": seconds, "tokens_per_s": computed / seconds if seconds else 0.0}
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

    def _idle(self, rows: Sequence[Row], own: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Over shards every forward pass takes all ranks, so all go through as many as the busiest one."""
        if self.shards is None:
            return []
        most = max(self.ranks.all_gather_now(len(own), "the number of micro-batches"))
        return [idle_part(rows) for _ in range(most - len(own))]

    @torch.no_grad()
    def _look(self, batch: Batch) -> Statistics:
        """At a sample of the episodes that are not trained on: what is said of the sampled tokens is said of all."""
        looked = Statistics()
        rows = sample_rows(batch.silent, LOOKED_AT * sum(len(row.tokens) for row in (*batch.rows, *batch.silent)))
        own = list(micro_batches(share_rows(rows, self.ranks), self.settings.token_budget))
        micro = own + self._idle(rows, own)
        found = [self._forward(PackedPlan(part, self.policy.device)) for part in micro][: len(own)]
        if (masks := self._new_masks()) is not None:
            masks.decide((part, logprobs) for part, (logprobs, _) in zip(own, found, strict=True))
        for part, (logprobs, entropy) in zip(own, found, strict=True):
            terms = _terms(part, logprobs, entropy, None, self._no_drift(logprobs), None, masks)
            loss, parts = find_loss(self.settings.loss)(terms, self.settings.loss_settings)
            looked.add(loss, terms, entropy, parts)
        return looked

    def _new_masks(self) -> SequenceMasks | None:
        mask = sequence_mask(vars(self.settings.loss_settings))
        return None if mask is None else SequenceMasks(mask)

    @torch.no_grad()
    def _masks(self, own: Sequence[MicroBatch], micro: Sequence[MicroBatch]) -> SequenceMasks | None:
        """With those trajectories decided whose rows lie in several micro-batches: each needs the log-probs of all
        before its own backward, in a forward pass of its own. The others are decided on the way."""
        if (masks := self._new_masks()) is None:
            return None
        torn = split_trajectories(own)
        if self.shards is not None:  # a forward pass takes all ranks, so all go through the same number
            anywhere = any(self.ranks.all_gather_now(bool(torn), "the trajectories in several micro-batches"))
            torn = list(micro) if anywhere else []
        masks.decide([(part, self._forward(PackedPlan(part, self.policy.device))[0]) for part in torn])
        return masks

    def _of_all_ranks(self, report: Report, passes: list[Statistics]) -> tuple[Report, list[Statistics]]:
        found = self.ranks.all_gather_now((report.logprobs, report.entropies, passes), "the update's metrics")
        logprobs = {key: values for part, _, _ in found for key, values in part.items()}
        entropies = {key: values for _, part, _ in found for key, values in part.items()}
        each = zip(*(stats for _, _, stats in found), strict=True)
        return Report({}, logprobs, entropies), [Statistics.sum(of_all) for of_all in each]

    def _no_drift(self, logprobs: Tensor) -> Tensor | None:
        """Of a reference that is not computed: a loss with a KL term always gets one."""
        return None if self._initial is None else logprobs.detach()

    def _references(self, micro: Sequence[MicroBatch]) -> list[Tensor | None]:
        """Log-probs of the policy that the run started from, with a KL term: one exchange of weights for all."""
        if self._initial is None:
            return [None] * len(micro)
        with torch.no_grad(), self.reference():
            return [self._forward(PackedPlan(part, self.policy.device))[0] for part in micro]

    def logprobs(self, rows: Sequence[Any]) -> dict[str, list[float]]:
        """Trainer log-probs of the rows' trained tokens, without an update."""
        found: dict[str, list[float]] = {}
        with torch.no_grad():
            for part in micro_batches(rows, self.settings.token_budget):
                plan = PackedPlan(part, self.policy.device)
                values, _ = self._forward(plan)
                found |= {key: own.tolist() for key, own in _by_row(part, plan, values).items()}
        return found

    def measure_pass(self, rows: Sequence[Any]) -> None:
        """A forward and backward pass whose gradients are thrown away: to see how long one takes."""
        with self._training():
            for part in micro_batches(rows, self.settings.token_budget):
                self._backward(part, None, None, None, None, Statistics(), None)
        self.optimiser.take_gradients()

    def slopes(self, rows: Sequence[Any], weights: Mapping[str, Sequence[float]]) -> list[Tensor | None]:
        """The gradient, by what is trained, of the sum of the rows' trained log-probs, each weighted."""
        with self._training():
            for part in micro_batches(rows, self.settings.token_budget):
                plan = PackedPlan(part, self.policy.device)
                values, _ = self._forward(plan)
                if values.requires_grad:
                    each = torch.tensor([w for row in part.rows for w in weights[row.key]]).to(values)
                    (values * each).sum().backward()
        return self.optimiser.take_gradients()

    def rate(self, lr: float | None = None) -> float:
        warm = self.settings.warmup_steps
        return (self.settings.lr if lr is None else lr) * min(1.0, (self.updates + 1) / (warm + 1))

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

    def reference(self) -> AbstractContextManager[None]:
        """The policy as it was when the run started."""
        assert self._initial is not None
        return self._exchanged(self._initial)

    def base(self) -> AbstractContextManager[None]:
        """The model itself: an adapter of zeros adds nothing."""
        if self.policy.peft is None:
            raise ValueError("all the weights are trained: what they were before is not here")
        return self._exchanged([torch.zeros_like(w) for w in self.optimiser.weights])

    @contextlib.contextmanager
    def _exchanged(self, values: Sequence[Tensor]) -> Iterator[None]:
        weights = self.optimiser.weights
        current = [w.detach().clone() for w in weights]
        self._exchange(weights, values)
        try:
            yield
        finally:
            self._exchange(weights, current)

    def _exchange(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        assign(weights, values)
        if isinstance(self.shards, Shards):
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
        if not find_loss(self.settings.loss).per_sequence:
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
        reference: Tensor | None,
        drift: dict[str, float] | None,
        masks: SequenceMasks | None,
        stats: Statistics,
        report: Report | None,
    ) -> Tensor:
        plan = PackedPlan(part, self.policy.device)
        tokens = part.computed_tokens
        with self._threads.chosen(tokens, tokens) if self._threads and tokens else contextlib.nullcontext():
            logprobs, entropy = self._forward(plan)
            reference = self._no_drift(logprobs) if reference is None else reference
            if masks is not None and old is None:
                masks.decide([(part, logprobs)])
            terms = _terms(part, logprobs, entropy, old, reference, drift, masks)
            loss, parts = find_loss(self.settings.loss)(terms, self.settings.loss_settings)
            loss.backward()
        stats.add(loss, terms, entropy, parts)
        stats.find_worst(part, plan, terms)
        if report is not None:
            report.logprobs |= _by_row(part, plan, logprobs.detach())
            report.entropies |= _by_row(part, plan, entropy)
        return terms.old


def give_back_memory() -> None:
    """The activations are free, but the C library keeps them for itself in pieces that the next, differently cut
    micro-batches do not fit into: on the CPU the process would grow for several updates."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _terms(
    part: MicroBatch,
    logprobs: Tensor,
    entropy: Tensor,
    old: Tensor | None,
    reference: Tensor | None,
    drift: dict[str, float] | None,
    masks: SequenceMasks | None,
) -> LossTerms:
    counts = [sum(row.train) for row in part.rows]

    def by_token(values: Iterable[Sequence[float] | np.ndarray]) -> Tensor:
        flat = np.concatenate([np.zeros(0), *map(np.asarray, values)])
        return torch.as_tensor(flat, dtype=torch.get_default_dtype(), device=logprobs.device)

    def by_row(values: Iterable[float]) -> Tensor:
        """A row's value, for each of its trained tokens."""
        return by_token(np.full(count, value) for value, count in zip(values, counts, strict=True))

    cuts = None if masks is None else [masks.of(row) for row in part.rows]
    return LossTerms(
        logprobs,
        logprobs.detach() if old is None else old,
        by_token(row.trained_logprobs for row in part.rows),
        reference,
        by_token(token_advantages(row) for row in part.rows),
        by_row(row.weight for row in part.rows),
        None if drift is None else by_row(drift[trajectory_of(row)] for row in part.rows),
        entropy,
        None if cuts is None else by_row(cut.geo for cut in cuts).bool(),
        None if cuts is None else by_row(cut.sequence for cut in cuts).bool(),
    )


def _by_row(part: MicroBatch, plan: PackedPlan, values: Tensor) -> dict[str, np.ndarray]:
    return {row.key: own.numpy() for row, own in zip(part.rows, values.cpu().split(plan.counts), strict=True)}
