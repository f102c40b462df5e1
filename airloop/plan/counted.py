"""The shape of a model by arithmetic, for the architectures that our own forward pass knows: a plan then answers at
once, where building the model, even without storage, takes seconds of imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airloop.models.supported import KNOWN, ROTARY
from airloop.plan.shape import Shape

# Without one of these a default of transformers' class would count.
NEEDED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "tie_word_embeddings"),
)


def count(settings: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json describes; None where only the model itself can tell."""
    kind = settings.get("model_type")
    whole = _with_head_size(settings)
    if kind not in KNOWN or not _is_plain(settings) or any(whole.get(key) is None for key in NEEDED):
        return None
    hidden, inner, layers, heads, kv_heads, dim, vocabulary = (int(whole[key]) for key in NEEDED[:-1])
    projections = {
        "self_attn.q_proj": (hidden, heads * dim),
        "self_attn.k_proj": (hidden, kv_heads * dim),
        "self_attn.v_proj": (hidden, kv_heads * dim),
        "self_attn.o_proj": (heads * dim, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    biased = _biased(kind, settings)
    norms = 2 * hidden + (2 * dim if kind == "qwen3" else 0)
    block = norms + sum(a * b + (b if name.split(".")[1] in biased else 0) for name, (a, b) in projections.items())
    linears = [
        (f"model.layers.{layer}.{name}", a + b) for layer in range(layers) for name, (a, b) in projections.items()
    ]
    embeddings = vocabulary * hidden * (1 if whole["tie_word_embeddings"] else 2)
    return Shape(
        parameters=embeddings + layers * block + hidden,
        block=block,
        layers=layers,
        hidden=hidden,
        inner=inner,
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        vocabulary=vocabulary,
        qk_norm=kind == "qwen3",
        own_forward=True,
        linears=(*linears, ("lm_head", hidden + vocabulary)),
    )


def _with_head_size(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen3 has a default of its own for the size of a head; the others share the width among them."""
    found = dict(settings)
    if found.get("head_dim") is None and found.get("model_type") != "qwen3":
        width, heads = found.get("hidden_size"), found.get("num_attention_heads")
        found["head_dim"] = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    return found


def _is_plain(settings: Mapping[str, Any]) -> bool:
    """What models/blocks.py asks of a model for our own forward pass, where config.json alone decides it."""
    kinds = {*(settings.get("layer_types") or ["full_attention"])}
    if settings["model_type"] == "mistral":  # its class has a window where the file says nothing
        windowed = settings.get("sliding_window", "unsaid") is not None
    else:
        windowed = bool(settings.get("use_sliding_window"))
    scaling = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    rope = scaling.get("rope_type", scaling.get("type", "default"))
    return (
        settings.get("hidden_act", "silu") == "silu" and kinds == {"full_attention"} and not windowed and rope in ROTARY
    )


def _biased(kind: str, settings: Mapping[str, Any]) -> set[str]:
    attention = {"q_proj", "k_proj", "v_proj"}
    if kind == "qwen2":
        return attention
    found = attention | {"o_proj"} if kind != "mistral" and settings.get("attention_bias") else set()
    return found | ({"gate_proj", "up_proj", "down_proj"} if kind == "llama" and settings.get("mlp_bias") else set())
