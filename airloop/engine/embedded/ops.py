"""The engine's own operations, by device: Triton kernels on CUDA, the same results from plain torch elsewhere.

What is above them (forward.py, runner.py) does not know on which device it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _kernels(name: str) -> Any:
    import importlib

    return importlib.import_module(f"airloop.engine.embedded.kernels.{name}")


def add_norm(x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream x [T, width] plus `add`, and its RMS norm."""
    if x.is_cuda:
        return _kernels("rows").add_norm(x, add, weight, eps)
    total = x if add is None else x + add
    return total, rms_norm(total, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


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
    if qkv.is_cuda:
        return _kernels("rows").rotary_write(qkv, keys, values, table, slots, positions, angles, norms, eps, heads)
    page, kv_heads, dim = keys.shape[1:]
    q, k, v = qkv[:, : (heads + 2 * kv_heads) * dim].split([heads * dim, kv_heads * dim, kv_heads * dim], 1)
    cos, sin = (a[positions][:, None] for a in angles)
    q, k = q.unflatten(1, (heads, dim)), k.unflatten(1, (kv_heads, dim))
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    pages = table[slots, positions // page].long()
    keys[pages, positions % page] = _turn(k, cos, sin)
    values[pages, positions % page] = v.unflatten(1, (kv_heads, dim))
    return _turn(q, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def add_product(out: Tensor, low: Tensor, up: Tensor) -> None:
    """out [T, width] += low [T, rank] @ up [rank, width]; out and low may be views into the same rows."""
    if out.is_cuda:
        _kernels("adapter").add_product(out, low, up)
    else:
        out.addmm_(low, up)  # (with `out=` it would be another operator, which is not widened: models/fp32_matmul.py)


def gated(both: Tensor, width: int) -> Tensor:
    """silu(gate) × up, from [T, ≥ 2 width] to [T, width]."""
    if both.is_cuda:
        return _kernels("rows").gated(both, width)
    return torch.nn.functional.silu(both[:, :width]) * both[:, width : 2 * width]


def attend_decode(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, slots: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """query [B, heads, d], one token per sequence at its position, over the pages of its slot."""
    if query.is_cuda:
        return _kernels("attention").decode(query, keys, values, table, slots, positions, scale)
    rows = [
        _attend(query[i : i + 1], keys, values, table[int(slot)], int(place), scale)
        for i, (slot, place) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True))
    ]
    return torch.cat(rows)


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
    if query.is_cuda:
        return _kernels("attention").prefill(query, keys, values, table, blocks, out, scale)
    for start, count, place, slot in zip(*(b.tolist() for b in blocks), strict=True):
        out[start : start + count] = _attend(query[start : start + count], keys, values, table[slot], place, scale)
    return None


def block_tokens(heads: int, kv_heads: int, device: torch.device) -> int:
    return int(_kernels("attention").block_tokens(heads, kv_heads)) if device.type == "cuda" else 32


def _attend(query: Tensor, keys: Tensor, values: Tensor, listed: Tensor, place: int, scale: float) -> Tensor:
    n, total, size = len(query), place + len(query), keys.shape[1]
    pages = listed[: -(-total // size)].long()
    k, v = (x[pages].flatten(0, 1)[:total].transpose(0, 1)[None] for x in (keys, values))
    mask = torch.arange(total)[None] <= torch.arange(place, total)[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], k, v, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(n, *query.shape[1:])


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
    if logits.is_cuda:
        return _kernels("draw").draw(logits, slots, heat, seeds, drawn, floors, tokens, positions, caps, out, counter)
    scaled = logits.float() / torch.where(heat[slots] > 0, heat[slots], 1.0)[:, None]
    total = scaled.logsumexp(-1)  # torch's log_softmax adds up in a row: 3e-5 off on ARM
    allowed = scaled if floors is None else scaled.masked_fill(logits.float() < floors[:, None], float("-inf"))
    race = torch.empty_like(allowed)
    for row, (seed, at) in enumerate(zip(seeds[slots].tolist(), drawn[slots].tolist(), strict=True)):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + at) % (1 << 63))
        race[row].exponential_(generator=generator)
    noisy = torch.where(heat[slots, None] > 0, allowed - race.log(), allowed)
    token = noisy.argmax(-1)
    step = int(counter)
    out[0][step, : len(token)] = token.to(out[0].dtype)
    out[1][step, : len(token)] = scaled.gather(1, token[:, None])[:, 0] - total
    tokens[slots] = token.to(tokens.dtype)
    drawn[slots] += 1
    positions[slots] = torch.minimum(positions[slots] + 1, caps[slots])
    return None


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
