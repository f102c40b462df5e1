"""Masks of whole sequences: a trajectory that the policy has moved too far from since it was sampled is left out of the
loss with all its tokens. Learner, ledger and page decide by the one function here, which needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Bounds = tuple[float, float]  # the lowest and the highest p_trainer/p_sampler that is kept
KEYS = ("geo_mask_low", "geo_mask_high", "sequence_mask_low", "sequence_mask_high")  # of [trainer.loss]


class MaskedBy(NamedTuple):
    """By which mask a trajectory is left out."""

    geo: bool = False
    sequence: bool = False


@dataclass(frozen=True)
class SequenceMask:
    geo: Bounds  # of the geometric mean of a trajectory's ratios
    sequence: Bounds  # of each of them: one outside is enough

    def cut(self, logs: Sequence[float]) -> MaskedBy:
        """`logs`: log-ratios of all the trained tokens of a trajectory, whatever its branches. One that is not a number
        is beyond no bound: the update itself refuses it."""
        if not logs:
            return MaskedBy()
        mean = sum(logs) / len(logs)
        (low, high), (least, most) = (tuple(map(_log, bounds)) for bounds in (self.geo, self.sequence))
        return MaskedBy(mean < low or mean > high, any(log < least or log > most for log in logs))


def sequence_mask(loss: Mapping[str, Any]) -> SequenceMask | None:
    """What [trainer.loss] asks for: a key that is not there, or None, bounds nothing. None without a bound."""
    low, high, least, most = (loss.get(key) for key in KEYS)
    mask = SequenceMask((low or 0.0, high or math.inf), (least or 0.0, most or math.inf))
    return None if mask == SequenceMask((0.0, math.inf), (0.0, math.inf)) else mask


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf
