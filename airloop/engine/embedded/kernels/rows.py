"""Kernels that work on one token at a time: norms, rotary positions with the write into pages, the gated MLP's product.

All compute in float32 and round once, at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, add, total, out, weight, eps, width, x_stride, add_stride, HAS_ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADD:
        value += tl.load(add + row * add_stride + at, mask=inside, other=0.0).to(tl.float32)
        # The norm sees the sum as the residual stream holds it, rounded.
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * width + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (value * scale * w).to(out.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream x [T, width] plus `add` (a row-strided view will do), and its RMS norm."""
    rows, width = x.shape
    out = torch.empty_like(x)
    total = x if add is None else torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x, x if add is None else add, total, out, weight, eps, width, x.stride(0),
        0 if add is None else add.stride(0), add is not None, block, num_warps=min(max(block // 512, 1), 8),
    )  # fmt: skip
    return total, out


@triton.jit
def _rotate(source, norm, eps, first, cos, sin, HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr,
            HAS_NORM: tl.constexpr):  # fmt: skip
    """The two halves [heads, d/2] of a token's heads, normed and turned, in float32."""
    head = tl.arange(0, PADDED)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (head < HEADS) & (at < HALF)
    place = source + (first + head) * (2 * HALF) + at
    low = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)
        low = low * scale[:, None] * tl.load(norm + at).to(tl.float32)
        high = high * scale[:, None] * tl.load(norm + HALF + at).to(tl.float32)
    c = tl.load(cos + at)
    s = tl.load(sin + at)
    return low * c - high * s, high * c + low * s


@triton.jit
def _rotary_write(qkv, query, keys, values, table, slots, positions, cos, sin, q_norm, k_norm, eps, qkv_stride,
                  table_stride, HEADS: tl.constexpr, KV: tl.constexpr, HEADS_P: tl.constexpr, KV_P: tl.constexpr,
                  HALF: tl.constexpr, PAGE: tl.constexpr, HAS_NORM: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    dim: tl.constexpr = 2 * HALF
    at = tl.arange(0, HALF)[None, :]
    source = qkv + row * qkv_stride
    cos += position * HALF
    sin += position * HALF
    if tl.program_id(1) == 0:
        low, high = _rotate(source, q_norm, eps, 0, cos, sin, HEADS, HEADS_P, HALF, HAS_NORM)
        head = tl.arange(0, HEADS_P)[:, None]
        inside = (head < HEADS) & (at < HALF)
        target = query + row * HEADS * dim + head * dim + at
        tl.store(target, low.to(query.dtype.element_ty), mask=inside)
        tl.store(target + HALF, high.to(query.dtype.element_ty), mask=inside)
    else:
        page = tl.load(table + tl.load(slots + row).to(tl.int64) * table_stride + position // PAGE).to(tl.int64)
        cell = page * PAGE + position % PAGE
        kv_head = tl.arange(0, KV_P)[:, None]
        there = (kv_head < KV) & (at < HALF)
        place = cell * KV * dim + kv_head * dim + at
        k_low, k_high = _rotate(source, k_norm, eps, HEADS, cos, sin, KV, KV_P, HALF, HAS_NORM)
        tl.store(keys + place, k_low.to(keys.dtype.element_ty), mask=there)
        tl.store(keys + place + HALF, k_high.to(keys.dtype.element_ty), mask=there)
        value = source + (HEADS + KV + kv_head) * dim + at
        tl.store(values + place, tl.load(value, mask=there, other=0.0), mask=there)
        tl.store(values + place + HALF, tl.load(value + HALF, mask=there, other=0.0), mask=there)


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
    """Queries [T, heads, d], normed and turned; keys and values of the same tokens go into their pages.

    qkv [T, ≥ (heads + 2 kv_heads) d]; keys and values [pages, cells, kv_heads, d]; table [slots, pages of a slot];
    angles: cos and sin [context, d/2] in float32.
    """
    rows = qkv.shape[0]
    page, kv_heads, dim = keys.shape[1:]
    query = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    q_norm, k_norm = norms or (qkv, qkv)
    _rotary_write[(rows, 2)](
        qkv, query, keys, values, table, slots, positions, angles[0], angles[1], q_norm, k_norm, eps, qkv.stride(0),
        table.stride(0), heads, kv_heads, triton.next_power_of_2(heads), triton.next_power_of_2(kv_heads), dim // 2,
        page, norms is not None, num_warps=4,
    )  # fmt: skip
    return query


@triton.jit
def _gated(both, out, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(both + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * stride + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def gated(both: Tensor, width: int) -> Tensor:
    """silu(gate) × up, from [T, ≥ 2 width] to [T, width]."""
    rows = both.shape[0]
    out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
    block = min(triton.next_power_of_2(width), 1024)
    _gated[(rows, triton.cdiv(width, block))](both, out, width, both.stride(0), block, num_warps=4)
    return out
