"""Which trajectories of an update are left out as a whole (losses/sequence_mask.py): decided once, before the first
backward pass that has a row of them, and the same in every micro-batch and pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor

from airloop.learn.advantages import trajectory_of
from airloop.learn.batches import MicroBatch, Row
from airloop.learn.losses.sequence_mask import MaskedBy, SequenceMask


class SequenceMasks:
    """Of one update, on one rank: all rows of a trajectory are there."""

    def __init__(self, mask: SequenceMask) -> None:
        self._mask = mask
        self._cuts: dict[str, MaskedBy] = {}

    def decide(self, found: Iterable[tuple[MicroBatch, Tensor]]) -> None:
        """Of micro-batches with the trainer's log-probs of their trained tokens: trajectories that are not decided yet
        must have all their rows among these."""
        logs: dict[str, list[float]] = {}
        for part, values in found:
            of_rows = values.detach().cpu().split([sum(row.train) for row in part.rows])
            for row, own in zip(part.rows, of_rows, strict=True):
                logs.setdefault(trajectory_of(row), []).extend(_log_ratios(row, own.tolist()))
        for key, own_logs in logs.items():
            if key not in self._cuts:
                self._cuts[key] = self._mask.cut(own_logs)

    def of(self, row: Row) -> MaskedBy:
        return self._cuts[trajectory_of(row)]


def _log_ratios(row: Row, logprobs: Sequence[float]) -> list[float]:
    return [now - then for now, then in zip(logprobs, row.trained_logprobs, strict=True)]


def split_trajectories(micro: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Micro-batches with a trajectory whose other rows lie in another."""
    parts = Counter(key for part in micro for key in {trajectory_of(row) for row in part.rows})
    return [part for part in micro if any(parts[trajectory_of(row)] > 1 for row in part.rows)]
