"""The supervised start: make the demonstrated tokens likely. [warmstart] has it; it is no type of [trainer.loss]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.learn.losses.base import LossSettings, LossSpec, LossStats, LossTerms

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(terms: LossTerms, settings: LossSettings) -> tuple[Tensor, LossStats]:
    return -terms.logprobs, {}


SFT = LossSpec("sft", cross_entropy, supervised=True)
