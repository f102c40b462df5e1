"""The losses there are (docs/losses.md has their formulas): a new one is a file here and its line in the table.

Nothing else knows a loss by its name. One of a user's own is such a file, too, named by its path in trainer.loss.type.
"""

from __future__ import annotations

from pkgutil import resolve_name

from airloop.learn.losses.base import (
    LossSettings,
    LossSpec,
    LossStats,
    LossTerms,
    Parts,
    clip_ratio,
    importance_weight,
    kl_estimate,
)
from airloop.own_code import is_file_id

__all__ = [
    "LOSSES",
    "POLICY_LOSSES",
    "LossSettings",
    "LossSpec",
    "LossStats",
    "LossTerms",
    "Parts",
    "clip_ratio",
    "find_loss",
    "importance_weight",
    "kl_estimate",
]

_FILES = (
    "airloop.learn.losses.grpo:GRPO",
    "airloop.learn.losses.grpo:DR_GRPO",
    "airloop.learn.losses.grpo:DAPO",
    "airloop.learn.losses.gspo:GSPO",
    "airloop.learn.losses.cispo:CISPO",
    "airloop.learn.losses.rloo:RLOO",
    "airloop.learn.losses.sft:SFT",
)
LOSSES: dict[str, LossSpec] = {spec.name: spec for spec in map(resolve_name, _FILES)}
# Those that [trainer.loss] type takes.
POLICY_LOSSES = tuple(name for name, spec in LOSSES.items() if not spec.supervised)


def find_loss(name: str) -> LossSpec:
    """By its name in the table, or by file and function: then the file is imported, and what it has is tried."""
    if not is_file_id(name):
        return LOSSES[name]
    from airloop.learn.custom_losses import load_loss

    return load_loss(name)
