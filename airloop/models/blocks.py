"""The parts of the architectures we run with our own forward pass: Llama (SmolLM2), Qwen2/2.5, Qwen3, Mistral.

All are the same block: norm, grouped-query attention with rotary positions (Qwen3 norms queries and keys, Qwen2 adds
biases), norm, gated MLP. The modules stay transformers' and PEFT's own, so there is one copy of every weight; what is
here only names them. An architecture not known here runs through transformers' own forward, slower and as correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from airloop.models.supported import KNOWN, ROTARY


@dataclass(frozen=True)
class Block:
    """One layer. The projections are nn.Linear, or PEFT's wrapper around one."""

    before: nn.Module  # RMS norm in front of attention
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    after: nn.Module  # RMS norm in front of the MLP
    gate: nn.Module
    up: nn.Module
    down: nn.Module


@dataclass(frozen=True)
class Blocks:
    embed: nn.Embedding
    layers: tuple[Block, ...]
    norm: nn.Module
    rotary: nn.Module
    eps: float
    heads: int
    kv_heads: int
    dim: int  # of one head

    @property
    def scale(self) -> float:
        return self.dim**-0.5

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, dim] in float32 for positions [T], with what the rotary type multiplies them by."""
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = self.rotary(like, positions[None])
        return cos[0], sin[0]


def read_blocks(model: Any) -> Blocks | None:
    """The parts of `model`, or None when its forward pass is not the one we know."""
    if why_unknown(model) is not None:
        return None
    decoder, config = model.get_decoder(), model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = tuple(
        Block(
            layer.input_layernorm,
            layer.self_attn.q_proj,
            layer.self_attn.k_proj,
            layer.self_attn.v_proj,
            layer.self_attn.o_proj,
            getattr(layer.self_attn, "q_norm", None),
            getattr(layer.self_attn, "k_norm", None),
            layer.post_attention_layernorm,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
            layer.mlp.down_proj,
        )
        for layer in decoder.layers
    )
    return Blocks(
        decoder.embed_tokens,
        layers,
        decoder.norm,
        decoder.rotary_emb,
        config.rms_norm_eps,
        config.num_attention_heads,
        config.num_key_value_heads,
        dim,
    )


def why_unknown(model: Any) -> str | None:
    """What about this model our own forward pass does not do; None when it does everything."""
    config = model.config
    if config.model_type not in KNOWN:
        return f"models of type {config.model_type} are run by transformers' own layers"
    if config.hidden_act != "silu":
        return f"its MLP uses {config.hidden_act}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds != {"full_attention"} or (window is not None and config.model_type == "mistral"):
        return "some of its layers see a window of the context only"
    rope = getattr(model.get_decoder().rotary_emb, "rope_type", "default")
    if rope not in ROTARY:
        return f"its rotary positions are of type {rope}"
    return None
