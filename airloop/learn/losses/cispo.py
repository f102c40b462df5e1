"""CISPO: REINFORCE with the ratio, cut from above, as a constant weight: no token loses its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.learn.losses.base import LossSettings, LossSpec, LossStats, LossTerms
from airloop.learn.losses.weights import TOKEN_MEAN

if TYPE_CHECKING:
    from torch import Tensor


def weighted_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
    ratio = (terms.logprobs.detach() - terms.old).exp()
    cap = 1 + settings.clip_high
    return -ratio.clamp_max(cap) * terms.advantage * terms.logprobs, {"clipped": ratio > cap}


CISPO = LossSpec(
    "cispo",
    weighted_loss,
    weight=TOKEN_MEAN,
    clip_high=4.0,
    like="dapo",
    formula="−sg(min(r, 1 + clip_high)) · A · log π",
    source="MiniMax-M1, 2025 (2506.13585), without a lower bound as in the paper; the cap of 5 follows ScaleRL, "
    "Khatri et al. 2025 (2510.13786)",
)
