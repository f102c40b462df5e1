"""Policy-gradient losses: small functions of per-token tensors (docs/losses.md has the formulas and sources).

All take the same tokens in the same order: `logprobs` now (with gradient), `old` at the start of the
update by the same trainer, `sampler` as recorded when the token was drawn, `reference` of the policy the
run started from. What a token counts (mean over a trajectory for GRPO, a constant for Dr. GRPO) is in
`weight` already, so the loss is one weighted sum and micro-batches add up to the batch exactly.

A new loss is one function decorated with `policy_loss`, a name in LOSSES, what its tokens weigh in
advantages.py, and its type and defaults in the config's schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossTerms:
    """What a token's loss is made of; each tensor is [tokens]."""

    logprobs: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor | None
    advantage: Tensor
    weight: Tensor
    # Of the token's trajectory, over all its tokens in whatever micro-batch: the mean of logprobs - old, without
    # gradient. None on the first pass, where it is zero. Only losses in SEQUENCE_LOSSES read it.
    sequence: Tensor | None = None


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


Parts = dict[str, Tensor]
Loss = Callable[[LossTerms, LossSettings], tuple[Tensor, Parts]]
# Of each token its loss, and whether it is clipped.
TokenLoss = Callable[[LossTerms, LossSettings], tuple[Tensor, Tensor]]


def policy_loss(token_loss: TokenLoss) -> Loss:
    """What all policy losses share around their own formula: the sampler's correction, the KL term, the weights."""

    @wraps(token_loss)
    def whole(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Parts]:
        parts: Parts = {}
        kl = None
        if terms.reference is not None and settings.kl_beta > 0:
            kl = kl_estimate(terms, settings.kl_estimator)
            parts["kl"] = kl.mean()
            if settings.kl_estimator == "k1":
                terms, kl = replace(terms, advantage=terms.advantage - settings.kl_beta * kl), None
        loss, clipped = token_loss(terms, settings)
        correction, cut = importance_weight(terms, settings)
        loss = loss * correction
        if kl is not None:
            loss = loss + settings.kl_beta * kl
        parts |= {"clipped": clipped.float().mean(), "importance": correction.mean(), "cut": cut.float().mean()}
        return (loss * terms.weight).sum(), {name: value.detach() for name, value in parts.items()}

    return whole


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


def _clip(ratio: Tensor, advantage: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """PPO's pessimistic minimum: a token that has gone far enough in the direction it is pushed has no gradient."""
    free = ratio * advantage
    held = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage
    return -torch.minimum(free, held), free > held


@policy_loss
def clipped_policy_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """GRPO, Dr. GRPO and DAPO: PPO's clipped objective; they differ in weights, advantages and defaults.

    On the first pass old == logprobs, so the ratio is 1 and clipping cannot act: it matters from the second
    pass over a batch on (trainer.loss.passes > 1).
    """
    return _clip((terms.logprobs - terms.old).exp(), terms.advantage, settings)


@policy_loss
def sequence_policy_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """GSPO: one ratio per trajectory, the geometric mean of its tokens' ratios; clipped as a whole.

    Written per token, as GSPO-token in the paper: the ratio's value comes from outside, its gradient from the
    token. Summed with equal weights this is the gradient of the sequence's ratio, wherever its rows are.
    """
    share = (terms.logprobs - terms.logprobs.detach()).exp()  # 1, with the token's gradient
    ratio = share if terms.sequence is None else terms.sequence.exp() * share
    return _clip(ratio, terms.advantage, settings)


@policy_loss
def weighted_policy_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """CISPO: REINFORCE with the ratio, cut from above, as a constant weight: no token loses its gradient."""
    ratio = (terms.logprobs.detach() - terms.old).exp()
    cap = 1 + settings.clip_high
    return -ratio.clamp_max(cap) * terms.advantage * terms.logprobs, ratio > cap


@policy_loss
def reinforce_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """RLOO: plain REINFORCE; its baseline is in the advantage."""
    return -terms.advantage * terms.logprobs, torch.zeros_like(terms.advantage)


def cross_entropy(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, Parts]:
    """The supervised start: make the demonstrated tokens likely."""
    return -(terms.logprobs * terms.weight).sum(), {}


LOSSES: dict[str, Loss] = {
    "grpo": clipped_policy_loss,
    "dr_grpo": clipped_policy_loss,
    "dapo": clipped_policy_loss,
    "gspo": sequence_policy_loss,
    "cispo": weighted_policy_loss,
    "rloo": reinforce_loss,
    "sft": cross_entropy,
}
SEQUENCE_LOSSES = frozenset({"gspo"})
