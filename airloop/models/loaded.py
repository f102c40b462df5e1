"""A model that is ready for use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.models.chat import ChatTokenizer

if TYPE_CHECKING:
    import torch


@dataclass
class Loaded:
    """A model in eval mode on its device, without key/value cache, and the tokenizer that fits it."""

    model: Any  # a transformers PreTrainedModel
    tokenizer: ChatTokenizer
    name: str
    path: Path | None  # None: made in memory
    dtype: torch.dtype
    device: torch.device
    notes: list[str] = field(default_factory=list)
