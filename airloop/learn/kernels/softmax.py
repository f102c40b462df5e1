"""What a row of logits says of one token: its log-prob, the entropy, and, in place of the logits, the gradient of the
log-prob. Two passes over the row and no other tensor of its size."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192


@triton.jit
def _row(
    logits_at, target_at, logprob_at, entropy_at, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    logits_at += row * WIDTH
    # per column of the block: largest so far, sum of exponentials, sum of exponentials times logits
    high = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    moment = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK):
        inside = start + columns < WIDTH
        # far below any logit, yet finite: what is outside must not make a NaN
        x = tl.load(logits_at + start + columns, mask=inside, other=-1e30).to(tl.float32) * factor
        new = tl.maximum(high, x)
        old, here = tl.exp(high - new), tl.where(inside, tl.exp(x - new), 0.0)
        total = total * old + here
        moment = moment * old + here * x
        high = new
    top = tl.max(high, 0)
    weight = tl.exp(high - top)
    summed = tl.sum(total * weight, 0)
    lse = top + tl.log(summed)
    target = tl.load(target_at + row)
    chosen = tl.load(logits_at + target).to(tl.float32) * factor
    tl.store(logprob_at + row, chosen - lse)
    tl.store(entropy_at + row, lse - tl.sum(moment * weight, 0) / summed)
    if GRADIENT:
        tl.debug_barrier()  # the target's logit has been read by all before it is overwritten
        for start in range(0, WIDTH, BLOCK):
            inside = start + columns < WIDTH
            x = tl.load(logits_at + start + columns, mask=inside, other=0.0).to(tl.float32) * factor
            d = (tl.where(start + columns == target, 1.0, 0.0) - tl.exp(x - lse)) * factor
            tl.store(logits_at + start + columns, d.to(logits_at.dtype.element_ty), mask=inside)


def read_rows_(logits: Tensor, targets: Tensor, temperature: float, gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies [rows] in float32, of the softmax of logits / temperature. With
    `gradient`, the logits become d log-prob / d logits."""
    rows, width = logits.shape
    logprobs, entropies = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    _row[(rows,)](
        logits, targets, logprobs, entropies, 1.0 / temperature,
        WIDTH=width, BLOCK=min(BLOCK, triton.next_power_of_2(width)), GRADIENT=gradient, num_warps=16,
    )  # fmt: skip
    return logprobs, entropies
