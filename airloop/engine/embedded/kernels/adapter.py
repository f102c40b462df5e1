"""An adapter's second product, added where the frozen weight's answer lies: one pass over it, no copy."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Ranks taken at once. All of a large adapter's would not fit into a processor's shared memory.
MOST_RANK = 64


@triton.jit(do_not_specialize=["rows"])
def _add_product(out, low, up, rows, width, rank, out_stride, low_stride, TALL: tl.constexpr, WIDE: tl.constexpr,
                 RANK: tl.constexpr):  # fmt: skip
    row = (tl.program_id(0) * TALL + tl.arange(0, TALL)).to(tl.int64)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    place = out + row[:, None] * out_stride + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < width)
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    for first in range(0, rank, RANK):
        k = first + tl.arange(0, RANK)
        known_a = (row[:, None] < rows) & (k[None, :] < rank)
        a = tl.load(low + row[:, None] * low_stride + k[None, :], mask=known_a, other=0.0)
        known_b = (k[:, None] < rank) & (column[None, :] < width)
        b = tl.load(up + k[:, None] * width + column[None, :], mask=known_b, other=0.0)
        value += tl.dot(a, b, input_precision="ieee")
    tl.store(place, value.to(out.dtype.element_ty), mask=inside)


def add_product(out: Tensor, low: Tensor, up: Tensor) -> None:
    """out [T, width] += low [T, rank] @ up [rank, width]; out and low may be views into the same rows."""
    rows, width = out.shape
    rank = low.shape[1]
    tall = 16 if rows <= 16 else 64
    wide = 32 if rows <= 128 else 128  # few rows: many small programs, since each waits for memory, not for arithmetic
    _add_product[(triton.cdiv(rows, tall), triton.cdiv(width, wide))](
        out, low, up, rows, width, rank, out.stride(0), low.stride(0), tall, wide,
        min(MOST_RANK, max(16, triton.next_power_of_2(rank))), num_warps=4,
    )  # fmt: skip
