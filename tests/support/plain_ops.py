"""The engine's operations in plain torch, by the names of its kernels: what they are held against, and what our own
forward pass runs on where there is no GPU. Importing this gives it to the engine (airloop/engine/embedded/ops.py)."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from airloop.engine.embedded import ops


def add_norm(x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
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
    out.addmm_(low, up)  # (with `out=` it would be another operator, which is not widened: models/fp32_matmul.py)


def gated(both: Tensor, width: int) -> Tensor:
    return torch.nn.functional.silu(both[:, :width]) * both[:, width : 2 * width]


def decode(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, slots: Tensor, positions: Tensor, scale: float
) -> Tensor:
    rows = [
        _attend(query[i : i + 1], keys, values, table[int(slot)], int(place), scale)
        for i, (slot, place) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True))
    ]
    return torch.cat(rows)


def prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor, Tensor],
    out: Tensor,
    scale: float,
) -> None:
    for start, count, place, slot in zip(*(b.tolist() for b in blocks), strict=True):
        out[start : start + count] = _attend(query[start : start + count], keys, values, table[slot], place, scale)


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


def block_tokens(heads: int, kv_heads: int) -> int:
    return 32


ops.off_cuda = sys.modules[__name__]
