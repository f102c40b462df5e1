"""silu(gate) * up, and its gradients, in one pass each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _forward(gate_at, up_at, out_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    gate = tl.load(gate_at + at, mask=inside, other=0.0)
    up = tl.load(up_at + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    opened = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(out_at + at, (opened * up.to(tl.float32)).to(gate.dtype), mask=inside)


@triton.jit
def _backward(d_at, gate_at, up_at, dgate_at, dup_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    d = tl.load(d_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_at + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    tl.store(dgate_at + at, (d * up * share * (1.0 + gate * (1.0 - share))).to(dgate_at.dtype.element_ty), mask=inside)
    tl.store(dup_at + at, (d * gate * share).to(dup_at.dtype.element_ty), mask=inside)


def gated_forward(gate: Tensor, up: Tensor) -> Tensor:
    """Both contiguous, of one shape."""
    out = torch.empty_like(gate)
    _forward[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK, num_warps=8)
    return out


def gated_backward(d: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    grid = (triton.cdiv(gate.numel(), BLOCK),)
    _backward[grid](d, gate, up, dgate, dup, gate.numel(), BLOCK=BLOCK, num_warps=8)
    return dgate, dup
