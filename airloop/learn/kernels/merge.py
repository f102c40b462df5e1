"""Merging a part of attention into the whole, row by row, in place (see airloop/learn/tree_attention.py)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


# What changes from batch to batch is not worth a compilation of its own.
@triton.jit(do_not_specialize=["first", "tokens", "count"], do_not_specialize_on_alignment=["rows_at"])
def _merge(
    out_at, lse_at, more_at, more_lse_at, rows_at, first, tokens, count, heads, dim,
    HEADS: tl.constexpr, DIM: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_at + number).to(tl.int64) if LISTED else number + first
    head, column = tl.arange(0, HEADS), tl.arange(0, DIM)[None]
    old = tl.load(lse_at + head * tokens + row, mask=head < heads, other=0.0)
    add = tl.load(more_lse_at + head * count + number, mask=head < heads, other=0.0)
    high = tl.maximum(old, add)
    new = high + tl.log(tl.exp(old - high) + tl.exp(add - high))
    inside = (head[:, None] < heads) & (column < dim)
    at = head[:, None] * dim + column
    out = tl.load(out_at + row * heads * dim + at, mask=inside, other=0.0)
    more = tl.load(more_at + number * heads * dim + at, mask=inside, other=0.0).to(tl.float32)
    out = out * tl.exp(old - new)[:, None] + more * tl.exp(add - new)[:, None]
    tl.store(out_at + row * heads * dim + at, out, mask=inside)
    tl.store(lse_at + head * tokens + row, new, mask=head < heads)


def merge_rows_(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor, rows: slice | Tensor) -> None:
    """out [tokens, heads, dim] and lse [heads, tokens] in float32; more and more_lse for the given rows of them."""
    tokens, heads, dim = out.shape
    listed, first = (lse, rows.start) if isinstance(rows, slice) else (rows, 0)
    _merge[(len(more),)](
        out, lse, more, more_lse, listed, first, tokens, len(more), heads, dim,
        HEADS=triton.next_power_of_2(heads), DIM=triton.next_power_of_2(dim), LISTED=listed is not lse,
        num_warps=8,
    )  # fmt: skip
