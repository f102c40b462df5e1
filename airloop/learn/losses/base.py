"""What a loss is: a function of per-token tensors, and all that the rest of air has to know of it (LossSpec).

No file here imports torch: the config's keys, help and rules are read off the table of losses, and `air --help` does
not wait for torch. Formulas need none but the tensors' own methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.learn.losses.weights import TRAJECTORY_MEAN, TokenWeight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossTerms:
    """What a token's loss is made of; each tensor is [tokens]. All have the same tokens in the same order, and only
    tokens that were sampled."""

    logprobs: Tensor  # now, with gradient
    old: Tensor  # at the start of the update, by the same trainer
    sampler: Tensor  # as recorded when the token was drawn
    reference: Tensor | None  # of the policy that the run started from; None without a KL term
    advantage: Tensor
    # What the token counts in the batch's sum: a mean over trajectories or tokens is in it already, so that
    # micro-batches add up to the batch exactly.
    weight: Tensor
    # Of the token's trajectory, over all its tokens in whatever micro-batch: the mean of logprobs - old, without
    # gradient. None on the first pass, where it is zero. Only losses with `per_sequence` have it.
    sequence: Tensor | None = None
    entropy: Tensor | None = None  # of the distribution that the token was drawn from, now, without gradient
    # Whether the token's trajectory is left out as a whole, by each of the two masks of sequences. None without them.
    cut_geo: Tensor | None = None
    cut_sequence: Tensor | None = None


@dataclass(frozen=True)
class LossSettings:
    """As in [trainer.loss], under the same names."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_beta: float = 0.0
    importance_cap: float = 2.0
    importance_mode: str = "truncate"
    importance_floor: float = 0.0
    kl_estimator: str = "k3"
    entropy_beta: float = 0.0
    anchor: str = "trainer"
    geo_mask_low: float = 0.0
    geo_mask_high: float = math.inf
    sequence_mask_low: float = 0.0
    sequence_mask_high: float = math.inf


LossStats = dict[str, "Tensor"]
Parts = LossStats  # its name in losses by path that were written before
# Of each token its loss; and what is to be known of it, [tokens] by name: the learner reports the means.
TokenLoss = Callable[[LossTerms, LossSettings], "tuple[Tensor, Mapping[str, Tensor]]"]


@dataclass(frozen=True)
class LossSpec:
    """A loss, whole. The config, its rules, the advantages, the learner, the doctor and the docs read it here."""

    name: str
    token_loss: TokenLoss
    weight: TokenWeight = TRAJECTORY_MEAN
    # Defaults of the keys of [trainer.loss] that not every loss has; None: it has no such key.
    clip_low: float | None = None
    clip_high: float | None = None
    scale_rewards: bool = True
    leave_one_out: bool = False  # the baseline is the mean of the others in the group
    per_sequence: bool = False  # it reads LossTerms.sequence, which takes a forward pass more
    once: str = ""  # why a batch cannot be used for more than one update
    like: str = ""  # the loss whose gradient it has on the first pass
    supervised: bool = False  # of demonstrations: no sampler to correct for, no start to stay near
    formula: str = ""  # of a token, as docs/losses.md shows it
    source: str = ""

    @property
    def anchors(self) -> bool:
        """Whether its clip can be one around the policy that sampled: of each token, on both sides."""
        return self.clip_low is not None and self.clip_high is not None and not self.per_sequence

    @property
    def defaults(self) -> dict[str, Any]:
        """The keys of [trainer.loss] that it has and not every loss has."""
        return {**self.clips, "scale_rewards": self.scale_rewards}

    @property
    def clips(self) -> dict[str, Any]:
        found = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        return {key: value for key, value in found.items() if value is not None}

    def __call__(self, terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
        """The weighted sum over the tokens, and statistics, each a mean over them."""
        if self.supervised:
            return (self._tokens(terms, settings)[0] * terms.weight).sum(), {}
        return self._corrected(terms, settings)

    def _corrected(self, terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
        """What all policy losses share around their own formula: the sampler's correction, the KL term."""
        parts: LossStats = {}
        kl = None
        if terms.reference is not None and settings.kl_beta > 0:
            kl = kl_estimate(terms, settings.kl_estimator)
            parts["kl"] = kl.mean()
            if settings.kl_estimator == "k1":
                terms, kl = replace(terms, advantage=terms.advantage - settings.kl_beta * kl), None
        if settings.entropy_beta > 0:
            terms = replace(terms, advantage=terms.advantage + settings.entropy_beta * surprise(terms))
        anchored = settings.anchor == "sampler"  # then the ratio is the correction, and its clip the trust region
        loss, own = self._tokens(replace(terms, old=terms.sampler) if anchored else terms, settings)
        correction, cut = importance_weight(terms, settings)
        if anchored:
            correction, cut = correction.new_ones(correction.shape), own.get("clipped", cut)
        left_out = {"cut_geo": terms.cut_geo, "cut_sequence": terms.cut_sequence}
        whole = {name: of_trajectory for name, of_trajectory in left_out.items() if of_trajectory is not None}
        for of_trajectory in whole.values():
            correction, cut = correction.masked_fill(of_trajectory, 0.0), cut.bool() | of_trajectory
        loss = loss * correction
        if kl is not None:
            loss = loss + settings.kl_beta * kl
        clipped = own.get("clipped", terms.weight.new_zeros(terms.weight.shape))
        seen = {**own, "clipped": clipped, "cut": cut, **whole}
        parts |= {name: value.float().mean() for name, value in seen.items()} | {"importance": correction.mean()}
        return (loss * terms.weight).sum(), {name: value.detach() for name, value in parts.items()}

    def _tokens(self, terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss, parts = self.token_loss(terms, settings)
        if loss.shape != terms.logprobs.shape:  # it would be spread over the tokens, or they over it
            raise AirError(
                f"The loss {self.name} gave a tensor of shape {list(loss.shape)} for {len(terms.logprobs)} tokens.",
                "return the loss of each token, [tokens]: it is weighted and summed by the learner.",
            )
        return loss, parts


def importance_weight(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """p_trainer/p_sampler of each token, a constant to the gradient, and where it was cut.

    "truncate" holds it at `importance_cap`; "mask" leaves tokens out that are above the cap or below the floor.
    """
    ratio = (terms.old - terms.sampler).exp()
    above = ratio > settings.importance_cap
    if settings.importance_mode == "truncate":
        return ratio.clamp_max(settings.importance_cap), above
    outside = above | (ratio < settings.importance_floor)
    return ratio.masked_fill(outside, 0.0), outside


def kl_estimate(terms: LossTerms, estimator: str) -> Tensor:
    """Schulman's estimators of KL(policy ‖ start) from each sampled token.

    k1 has no gradient: that of a plain k1 in the loss is zero on average, so it is taken off the advantage
    instead, as PPO takes it off the reward. It is that of the policy before the update, like every reward.
    k2's gradient is on average that of KL(policy ‖ start), k3's that of KL(start ‖ policy).
    """
    assert terms.reference is not None
    if estimator == "k1":
        return terms.old - terms.reference
    difference = terms.reference - terms.logprobs
    return difference.square() / 2 if estimator == "k2" else difference.exp() - difference - 1


def surprise(terms: LossTerms) -> Tensor:
    """How much rarer a token was than tokens are on average there, in nats. As an advantage its gradient is, on
    average over the tokens that may be drawn, that of the entropy."""
    assert terms.entropy is not None
    return -terms.logprobs.detach() - terms.entropy


def clip_ratio(ratio: Tensor, advantage: Tensor, settings: LossSettings) -> tuple[Tensor, LossStats]:
    """PPO's pessimistic minimum: a token that has gone far enough in the direction it is pushed has no gradient."""
    free = ratio * advantage
    held = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage
    return -free.minimum(held), {"clipped": free > held}
