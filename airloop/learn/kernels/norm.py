"""RMS norm of rows, as transformers rounds it: in float32, to the model's type, then times the weight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1024  # each takes every 1024th row: enough for any GPU, few enough partial sums of the weight's gradient


@triton.jit
def _forward(x_at, weight_at, out_at, inverse_at, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_at + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_at + columns, mask=inside, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    normed = (x * inverse).to(out_at.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_at + row * width + columns, normed.to(out_at.dtype.element_ty), mask=inside)
    tl.store(inverse_at + row, inverse)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    d_at, more_at, x_at, weight_at, inverse_at, dx_at, dweight_at, rows, width,
    BLOCK: tl.constexpr, MORE: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weight = tl.load(weight_at + columns, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), dtype=tl.float32)
    row = tl.program_id(0).to(tl.int64)
    while row < rows:
        at = row * width + columns
        inverse = tl.load(inverse_at + row)
        normed = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32) * inverse
        d = tl.load(d_at + at, mask=inside, other=0.0).to(tl.float32)
        scaled = d * weight
        dx = (scaled - normed * (tl.sum(scaled * normed, 0) / width)) * inverse
        if MORE:
            dx += tl.load(more_at + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_at + at, dx.to(dx_at.dtype.element_ty), mask=inside)
        if WEIGHT:
            dweight += d * normed
        row += tl.num_programs(0)
    if WEIGHT:
        tl.store(dweight_at + tl.program_id(0) * width + columns, dweight, mask=inside)


def norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [rows, width] -> normed, and 1 / rms [rows]."""
    rows, width = x.shape
    out, inverse = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    _forward[(rows,)](x, weight, out, inverse, width, eps, BLOCK=triton.next_power_of_2(width), num_warps=8)
    return out, inverse


def norm_backward(
    d: Tensor, more: Tensor | None, x: Tensor, weight: Tensor, inverse: Tensor, weight_too: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x, with `more` added to it (what came along the residual stream), and of the weight."""
    rows, width = x.shape
    programs = min(rows, PROGRAMS)
    dx = torch.empty_like(x)
    dweight = torch.empty(programs if weight_too else 0, width, dtype=torch.float32, device=x.device)
    _backward[(programs,)](
        d, d if more is None else more, x, weight, inverse, dx, dweight, rows, width,
        BLOCK=triton.next_power_of_2(width), MORE=more is not None, WEIGHT=weight_too, num_warps=8,
    )  # fmt: skip
    return dx, dweight.sum(0).to(weight.dtype) if weight_too else None
