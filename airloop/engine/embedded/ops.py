"""The engine's own operations: Triton kernels, on CUDA.

What is above them (forward.py, runner.py) does not know on which device it runs: with `off_cuda` also elsewhere.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

# Functions by the names of the kernels', for tensors that are on no GPU. A run has none: on a CPU it samples by
# transformers' layers. tests/support/plain_ops.py has them in plain torch, so that what is above the kernels is tested.
off_cuda: Any = None


def _on(x: Tensor, kernels: str) -> Any:
    return importlib.import_module(f"airloop.engine.embedded.kernels.{kernels}") if x.is_cuda else off_cuda


def add_norm(x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream x [T, width] plus `add`, and its RMS norm."""
    return _on(x, "rows").add_norm(x, add, weight, eps)


def rotary_write(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    slots: Tensor,
    positions: Tensor,
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    heads: int,
) -> Tensor:
    """Queries [T, heads, d], normed and turned; the same tokens' keys and values go into their pages.

    qkv [T, ≥ (heads + 2 kv_heads) d]; keys and values [pages, cells, kv_heads, d]; table [slots, pages of a slot];
    angles: cos and sin [context, d/2] in float32.
    """
    return _on(qkv, "rows").rotary_write(qkv, keys, values, table, slots, positions, angles, norms, eps, heads)


def add_product(out: Tensor, low: Tensor, up: Tensor) -> None:
    """out [T, width] += low [T, rank] @ up [rank, width]; out and low may be views into the same rows."""
    _on(out, "adapter").add_product(out, low, up)


def gated(both: Tensor, width: int) -> Tensor:
    """silu(gate) × up, from [T, ≥ 2 width] to [T, width]."""
    return _on(both, "rows").gated(both, width)


def attend_decode(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, slots: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """query [B, heads, d], one token per sequence at its position, over the pages of its slot."""
    return _on(query, "attention").decode(query, keys, values, table, slots, positions, scale)


def attend_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor, Tensor],
    out: Tensor,
    scale: float,
) -> None:
    """Causal attention of chunks over everything before them and themselves, into `out` (both [T, heads, d]).

    blocks: for at most `block_tokens` tokens of one chunk each: first row, tokens, position, slot.
    """
    _on(query, "attention").prefill(query, keys, values, table, blocks, out, scale)


def block_tokens(heads: int, kv_heads: int, device: torch.device) -> int:
    return int(_on(torch.empty(0, device=device), "attention").block_tokens(heads, kv_heads))


def draw(
    logits: Tensor,
    slots: Tensor,
    heat: Tensor,
    seeds: Tensor,
    drawn: Tensor,
    floors: Tensor | None,
    tokens: Tensor,
    positions: Tensor,
    caps: Tensor,
    out: tuple[Tensor, Tensor],
    counter: Tensor,
) -> None:
    """One token for each row of logits [B, vocabulary] of the slots [B]; writes each slot's token, moves it on by one
    position, and puts token and log-prob into row `counter` of out ([steps, most rows]). `floors` [B]: tokens with a
    logit below it cannot be drawn; the log-prob is that of the whole softmax all the same."""
    _on(logits, "draw").draw(logits, slots, heat, seeds, drawn, floors, tokens, positions, caps, out, counter)


def floors(logits: Tensor, slots: Tensor, heat: Tensor, limits: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The smallest logit [B] that each slot's top-k, top-p and min-p (`limits`, by slot) leave in the draw; never more
    than the row's largest. Tokens exactly as likely as the last one stay too."""
    top_k, top_p, min_p = (limit[slots] for limit in limits)
    temperature = torch.where(heat[slots] > 0, heat[slots], 1.0)
    ranked = logits.float().sort(-1, descending=True).values
    share = (ranked / temperature[:, None]).softmax(-1)
    before = share.cumsum(-1) - share
    kept = torch.where(top_p < 1, (before < top_p[:, None]).sum(-1), ranked.shape[1])
    kept = torch.where(top_k > 0, torch.minimum(kept, top_k), kept).clamp_min(1)
    floor = ranked.gather(1, kept[:, None] - 1)[:, 0]
    return torch.maximum(floor, ranked[:, 0] + min_p.log() * temperature)  # log 0: no floor
