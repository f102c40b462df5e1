"""Attention over pages: one kernel for sequences that decode, one for prompts and tool results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs in flight that keep an H100-class GPU's memory busy; below it a sequence's pages are split.
PROGRAMS = 528
MOST_SPLITS = 32


# What changes from step to step is not worth a compilation of its own.
@triton.jit(do_not_specialize=["splits"])
def _decode(query, keys, values, table, slots, positions, out, parts, sums, scale, table_stride, splits,
            KV: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
            WHOLE: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(positions + row) + 1
    pages = tl.cdiv(length, PAGE)
    share = tl.cdiv(pages, splits)
    first = split * share
    last = tl.minimum(first + share, pages)
    d = tl.arange(0, D)
    n = tl.arange(0, PAGE)
    g = tl.arange(0, GROUP_P)
    heads: tl.constexpr = KV * GROUP
    q = tl.load(query + (row * heads + kv * GROUP + g[:, None]) * D + d[None, :], mask=g[:, None] < GROUP, other=0.0)
    best = tl.full([GROUP_P], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_P], tl.float32)
    acc = tl.zeros([GROUP_P, D], tl.float32)
    listed = table + tl.load(slots + row).to(tl.int64) * table_stride
    for p in range(first, last):
        page = tl.load(listed + p).to(tl.int64)
        place = ((page * PAGE + n[:, None]) * KV + kv) * D + d[None, :]
        seen = p * PAGE + n < length
        k = tl.load(keys + place, mask=seen[:, None], other=0.0)
        v = tl.load(values + place, mask=seen[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(seen[None, :], s, float("-inf"))
        top = tl.maximum(best, tl.max(s, 1))
        weight = tl.exp(s - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = top
    if WHOLE:
        target = out + (row * heads + kv * GROUP + g[:, None]) * D + d[None, :]
        tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), mask=g[:, None] < GROUP)
    else:
        at = (row * heads + kv * GROUP + g) * splits + split
        # A split without pages leaves weight zero behind.
        safe = tl.where(total > 0, total, 1.0)
        tl.store(parts + at[:, None] * D + d[None, :], acc / safe[:, None], mask=g[:, None] < GROUP)
        tl.store(sums + at, tl.where(total > 0, best + tl.log(safe), float("-inf")), mask=g < GROUP)


@triton.jit(do_not_specialize=["splits"])
def _merge(parts, sums, out, splits, D: tl.constexpr, MOST: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, MOST)
    d = tl.arange(0, D)
    lse = tl.load(sums + row * splits + s, mask=s < splits, other=float("-inf"))
    weight = tl.exp(lse - tl.max(lse, 0))
    weight = weight / tl.sum(weight, 0)
    part = tl.load(parts + (row * splits + s[:, None]) * D + d[None, :], mask=s[:, None] < splits, other=0.0)
    tl.store(out + row * D + d, tl.sum(part * weight[:, None], 0).to(out.dtype.element_ty))


def decode(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, slots: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """query [B, heads, d], one token per sequence at its position, over the pages of its slot -> [B, heads, d]."""
    rows, heads, dim = query.shape
    page, kv_heads = keys.shape[1:3]
    splits = 1
    while rows * kv_heads * splits < PROGRAMS and splits < MOST_SPLITS:
        splits *= 2
    out = torch.empty_like(query)
    parts, sums = query, query
    if splits > 1:
        parts = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device)
        sums = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    group = heads // kv_heads
    _decode[(rows, kv_heads, splits)](
        query, keys, values, table, slots, positions, out, parts, sums, scale, table.stride(0), splits, kv_heads, group,
        max(16, triton.next_power_of_2(group)), dim, page, splits == 1, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _merge[(rows * heads,)](parts, sums, out, splits, dim, MOST_SPLITS, num_warps=2)
    return out


@triton.jit(do_not_specialize_on_alignment=["starts", "counts", "places", "slots"])
def _prefill(query, keys, values, table, starts, counts, places, slots, out, scale, table_stride, KV: tl.constexpr,
             GROUP: tl.constexpr, GROUP_P: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr,
             ):  # fmt: skip
    block = tl.program_id(0)
    kv = tl.program_id(1)
    start = tl.load(starts + block).to(tl.int64)  # first row of `query`
    count = tl.load(counts + block)
    place = tl.load(places + block)  # position of that row in its sequence
    r = tl.arange(0, TOKENS * GROUP_P)
    token = r // GROUP_P
    head = kv * GROUP + r % GROUP_P
    real = (token < count) & (r % GROUP_P < GROUP)
    d = tl.arange(0, D)
    n = tl.arange(0, PAGE)
    heads: tl.constexpr = KV * GROUP
    offset = ((start + token[:, None]) * heads + head[:, None]) * D + d[None, :]
    q = tl.load(query + offset, mask=real[:, None], other=0.0)
    best = tl.full([TOKENS * GROUP_P], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS * GROUP_P], tl.float32)
    acc = tl.zeros([TOKENS * GROUP_P, D], tl.float32)
    listed = table + tl.load(slots + block).to(tl.int64) * table_stride
    for p in range(tl.cdiv(place + count, PAGE)):
        page = tl.load(listed + p).to(tl.int64)
        inside = ((page * PAGE + n[:, None]) * KV + kv) * D + d[None, :]
        # What nobody has written yet may be anything: no weight would be small enough for a NaN.
        filled = (p * PAGE + n < place + count)[:, None]
        k = tl.load(keys + inside, mask=filled, other=0.0)
        v = tl.load(values + inside, mask=filled, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(p * PAGE + n[None, :] <= place + token[:, None], s, float("-inf"))
        top = tl.maximum(best, tl.max(s, 1))
        weight = tl.exp(s - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = top
    tl.store(out + offset, (acc / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def block_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of one program of `prefill`: heads that share keys are further rows of its tile."""
    return max(16, 128 // triton.next_power_of_2(heads // kv_heads))


def prefill(
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
    heads, dim = query.shape[1:]
    page, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    padded = triton.next_power_of_2(group)
    _prefill[(len(blocks[0]), kv_heads)](
        query, keys, values, table, *blocks, out, scale, table.stride(0), kv_heads, group, padded, dim, page,
        block_tokens(heads, kv_heads), num_warps=4 if dim <= 64 else 8, num_stages=3,
    )  # fmt: skip
