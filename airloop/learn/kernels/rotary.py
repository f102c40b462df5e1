"""Rotary positions, with the norm that Qwen3 puts before them, in one pass over queries or keys. Angles are float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 2048


@triton.jit
def _forward(
    x_at, stride, weight_at, cos_at, sin_at, out_at, heads, dim, eps,
    HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    half = dim // 2
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None]
    inside = (head < heads) & (column < half)
    at = head * dim + column
    first = tl.load(x_at + token * stride + at, mask=inside, other=0.0)
    second = tl.load(x_at + token * stride + at + half, mask=inside, other=0.0)
    one, two = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        inverse = 1.0 / tl.sqrt(tl.sum(one * one + two * two, 1) / dim + eps)
        w1 = tl.load(weight_at + column, mask=column < half, other=0.0).to(tl.float32)
        w2 = tl.load(weight_at + half + column, mask=column < half, other=0.0).to(tl.float32)
        one = ((one * inverse[:, None]).to(first.dtype).to(tl.float32) * w1).to(first.dtype).to(tl.float32)
        two = ((two * inverse[:, None]).to(first.dtype).to(tl.float32) * w2).to(first.dtype).to(tl.float32)
    cos = tl.load(cos_at + token * dim + column, mask=column < half, other=0.0)
    sin = tl.load(sin_at + token * dim + column, mask=column < half, other=0.0)
    out = out_at + token * heads * dim + at
    tl.store(out, (one * cos - two * sin).to(first.dtype), mask=inside)
    tl.store(out + half, (two * cos + one * sin).to(first.dtype), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _backward(
    d_at, x_at, stride, weight_at, cos_at, sin_at, dx_at, dweight_at, tokens, heads, dim, eps,
    HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    half = dim // 2
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None]
    inside = (head < heads) & (column < half)
    at = head * dim + column
    dweight1 = tl.zeros((HALF,), dtype=tl.float32)
    dweight2 = tl.zeros((HALF,), dtype=tl.float32)
    token = tl.program_id(0).to(tl.int64)
    while token < tokens:
        cos = tl.load(cos_at + token * dim + column, mask=column < half, other=0.0)
        sin = tl.load(sin_at + token * dim + column, mask=column < half, other=0.0)
        d1 = tl.load(d_at + token * heads * dim + at, mask=inside, other=0.0).to(tl.float32)
        d2 = tl.load(d_at + token * heads * dim + at + half, mask=inside, other=0.0).to(tl.float32)
        one, two = d1 * cos + d2 * sin, d2 * cos - d1 * sin
        if NORM:
            n1 = tl.load(x_at + token * stride + at, mask=inside, other=0.0).to(tl.float32)
            n2 = tl.load(x_at + token * stride + at + half, mask=inside, other=0.0).to(tl.float32)
            inverse = (1.0 / tl.sqrt(tl.sum(n1 * n1 + n2 * n2, 1) / dim + eps))[:, None]
            n1, n2 = n1 * inverse, n2 * inverse
            if WEIGHT:
                dweight1 += tl.sum(one * n1, 0)
                dweight2 += tl.sum(two * n2, 0)
            one *= tl.load(weight_at + column, mask=column < half, other=0.0).to(tl.float32)
            two *= tl.load(weight_at + half + column, mask=column < half, other=0.0).to(tl.float32)
            mean = (tl.sum(one * n1 + two * n2, 1) / dim)[:, None]
            one, two = (one - n1 * mean) * inverse, (two - n2 * mean) * inverse
        out = dx_at + token * heads * dim + at
        tl.store(out, one.to(dx_at.dtype.element_ty), mask=inside)
        tl.store(out + half, two.to(dx_at.dtype.element_ty), mask=inside)
        token += tl.num_programs(0)
    if WEIGHT:
        place = tl.arange(0, HALF)
        tl.store(dweight_at + tl.program_id(0) * dim + place, dweight1, mask=place < half)
        tl.store(dweight_at + tl.program_id(0) * dim + half + place, dweight2, mask=place < half)


def _sizes(x: Tensor) -> dict[str, int]:
    _, heads, dim = x.shape
    blocks = {"HEADS": triton.next_power_of_2(heads), "HALF": triton.next_power_of_2(dim // 2)}
    return {**blocks, "num_warps": 8 if heads * dim >= 4096 else 4}


def rotary_forward(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """x [tokens, heads, dim], each token's heads together in memory; cos and sin [tokens, dim] in float32."""
    tokens, heads, dim = x.shape
    out = torch.empty((tokens, heads, dim), dtype=x.dtype, device=x.device)
    _forward[(tokens,)](
        x, x.stride(0), x if weight is None else weight, cos, sin, out, heads, dim, eps,
        NORM=weight is not None, **_sizes(x),
    )  # fmt: skip
    return out


def rotary_backward(
    d: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, weight_too: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the norm's weight. Without a norm, x only says the shape."""
    tokens, heads, dim = x.shape
    programs = min(tokens, PROGRAMS)
    dx = torch.empty((tokens, heads, dim), dtype=d.dtype, device=d.device)
    dweight = torch.empty(programs if weight_too else 0, dim, dtype=torch.float32, device=d.device)
    _backward[(programs,)](
        d, x, x.stride(0), d if weight is None else weight, cos, sin, dx, dweight, tokens, heads, dim, eps,
        NORM=weight is not None, WEIGHT=weight_too, **_sizes(x),
    )  # fmt: skip
    return dx, dweight.sum(0).to(weight.dtype) if weight is not None and weight_too else None
