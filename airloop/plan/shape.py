"""What a plan must know about a model."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    parameters: int  # of the base model; tied weights count once
    block: int  # of those, in one layer
    layers: int
    hidden: int
    inner: int  # width inside the MLP
    heads: int
    kv_heads: int
    dim: int  # of one head
    vocabulary: int
    qk_norm: bool
    own_forward: bool  # known to airloop/models/blocks.py; else transformers' layers run, which keep more
    linears: tuple[tuple[str, int], ...]  # name, inputs + outputs: what one rank of an adapter costs there

    @property
    def kv_values(self) -> int:
        """Numbers that one token leaves in the key/value memory."""
        return self.layers * 2 * self.kv_heads * self.dim

    def adapter(self, rank: int, targets: list[str], last_layers: int | None = None) -> int:
        """Parameters of a LoRA adapter; PEFT chooses modules by the end of their names."""
        first = 0 if last_layers is None else self.layers - last_layers
        chosen = [
            size
            for name, size in self.linears
            if any(name == t or name.endswith(f".{t}") for t in targets) and _block(name) >= first
        ]
        return rank * sum(chosen)


def _block(name: str) -> int:
    """The number in `model.layers.7.self_attn.q_proj`; 0 where a module is in no block."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return int(found[1]) if found else 0
