"""GSPO: one ratio per trajectory, the geometric mean of its tokens' ratios; clipped as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.learn.losses.base import LossSettings, LossSpec, LossStats, LossTerms, clip_ratio

if TYPE_CHECKING:
    from torch import Tensor


def sequence_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
    """Written per token, as GSPO-token in the paper: the ratio's value comes from outside, its gradient from the
    token. Summed with equal weights this is the gradient of the sequence's ratio, wherever its rows are."""
    share = (terms.logprobs - terms.logprobs.detach()).exp()  # 1, with the token's gradient
    ratio = share if terms.sequence is None else terms.sequence.exp() * share
    return clip_ratio(ratio, terms.advantage, settings)


GSPO = LossSpec(
    "gspo",
    sequence_loss,
    clip_low=0.0003,
    clip_high=0.0004,
    per_sequence=True,
    like="grpo",
    formula="−min(s A, clip(s) A), s = exp(mean of log r over the trajectory)",
    source="Zheng et al. 2025 (2507.18071)",
)
