"""RLOO: plain REINFORCE; its baseline, the mean of the others in the group, is in the advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.learn.losses.base import LossSettings, LossSpec, LossStats, LossTerms
from airloop.learn.losses.weights import TOKEN_SUM

if TYPE_CHECKING:
    from torch import Tensor


def reinforce_loss(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
    return -terms.advantage * terms.logprobs, {}


RLOO = LossSpec(
    "rloo",
    reinforce_loss,
    weight=TOKEN_SUM,
    scale_rewards=False,
    leave_one_out=True,
    once="it has neither ratio nor clip, so after the first update it would go on as if the batch came from the new "
    "policy",
    formula="−A · log π",
    source="Kool et al. 2019; Ahmadian et al. 2024, Back to Basics (2402.14740)",
)
