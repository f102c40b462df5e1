"""Policy-gradient losses: small functions of per-token tensors.

All take the same tokens in the same order: `logprobs` now (with gradient), `old` at the start of the
update by the same trainer, `sampler` as recorded when the token was drawn, `reference` of the policy the
run started from. What a token counts (mean over a trajectory for GRPO, a constant for Dr. GRPO) is in
`weight` already, so the loss is one weighted sum and micro-batches add up to the batch exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class LossSettings:
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_beta: float = 0.0
    importance_cap: float = 2.0


def clipped_policy_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """GRPO and Dr. GRPO: PPO's clipped objective, corrected for the gap between sampler and trainer.

    The correction weights a token by p_trainer/p_sampler, cut at `importance_cap`; it is a constant to the
    gradient. On the first pass old == logprobs, so the ratio is 1 and clipping cannot act: it matters from
    the second pass over a batch on (trainer.loss.passes > 1).
    """
    ratio = (terms.logprobs - terms.old).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    loss = -torch.minimum(ratio * terms.advantage, clipped * terms.advantage)
    correction = (terms.old - terms.sampler).exp().clamp_max(settings.importance_cap)
    loss = loss * correction
    parts = {
        "clipped": ((ratio * terms.advantage) > (clipped * terms.advantage)).float().mean(),
        "importance": correction.mean(),
    }
    if terms.reference is not None and settings.kl_beta > 0:
        # k3, the estimator that is unbiased and never negative
        difference = terms.reference - terms.logprobs
        kl = difference.exp() - difference - 1
        loss = loss + settings.kl_beta * kl
        parts["kl"] = kl.detach().mean()
    return (loss * terms.weight).sum(), {k: v.detach() for k, v in parts.items()}


def cross_entropy(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """The supervised start: make the demonstrated tokens likely."""
    return -(terms.logprobs * terms.weight).sum(), {}


LOSSES = {"grpo": clipped_policy_loss, "dr_grpo": clipped_policy_loss, "sft": cross_entropy}
