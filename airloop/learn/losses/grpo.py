"""GRPO, Dr. GRPO and DAPO: PPO's clipped objective; they differ in weights, advantages and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.learn.losses.base import LossSettings, LossSpec, LossStats, LossTerms, clip_ratio
from airloop.learn.losses.weights import CONSTANT_LENGTH, TOKEN_MEAN

if TYPE_CHECKING:
    from torch import Tensor


def clipped_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
    """On the first pass old == logprobs, so the ratio is 1 and clipping cannot act: it matters from the second
    pass over a batch on (trainer.loss.passes > 1)."""
    return clip_ratio((terms.logprobs - terms.old).exp(), terms.advantage, settings)


GRPO = LossSpec(
    "grpo",
    clipped_loss,
    clip_low=0.2,
    clip_high=0.2,
    formula="−min(r A, clip(r) A)",
    source="Shao et al. 2024, DeepSeekMath (arXiv 2402.03300)",
)
DR_GRPO = LossSpec(
    "dr_grpo",
    clipped_loss,
    weight=CONSTANT_LENGTH,
    clip_low=0.2,
    clip_high=0.2,
    scale_rewards=False,
    formula="the same",
    source="Liu et al. 2025, Understanding R1-Zero-Like Training (2503.20783); its constant is ours to choose",
)
DAPO = LossSpec(
    "dapo",
    clipped_loss,
    weight=TOKEN_MEAN,
    clip_low=0.2,
    clip_high=0.28,
    formula="the same",
    source="Yu et al. 2025 (2503.14476)",
)
