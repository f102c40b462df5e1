"""One token from each row of logits, in one pass over them: the exponential race (the Gumbel trick).

Token i wins with probability p_i if its E_i / p_i is the smallest, E_i exponential. The numbers come from a counter
(Philox) fed with the request's seed, the position of the draw and the token, so nothing else in the batch matters.
The log-prob is that of the temperature-scaled, untruncated softmax. Truncation comes as a floor for each row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _race(logits, heat, seeds, drawn, floors, slots, scores, places, best, total, vocabulary, stride, blocks,
          BLOCK: tl.constexpr, FLOOR: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    temperature = tl.load(heat + slot)
    scale = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    raw = tl.load(logits + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    x = raw * scale
    # One stream of numbers per request (the seed) and draw (the counter's upper part).
    seed = tl.load(seeds + slot)
    u = tl.rand(seed, tl.load(drawn + slot) * vocabulary + at)
    # -log(1 - u), exact also where u is tiny: those are the draws that win.
    wait = tl.where(u < 0.01, u + u * u * 0.5 + u * u * u * 0.33333334, -tl.log(1.0 - u))
    score = x - tl.log(tl.maximum(wait, 1e-10))
    score = tl.where(temperature > 0, score, x)
    if FLOOR:
        # The logit itself, not the scaled one: rounded once more, a row's best could fall below its own floor.
        score = tl.where(raw >= tl.load(floors + row), score, float("-inf"))
    score = tl.where(inside, score, float("-inf"))
    top = tl.max(x, 0)
    where = row * blocks + block
    tl.store(best + where, top)
    tl.store(total + where, tl.sum(tl.exp(x - top), 0))
    tl.store(scores + where, tl.max(score, 0))
    tl.store(places + where, block * BLOCK + tl.argmax(score, 0))


@triton.jit
def _settle(logits, heat, slots, scores, places, best, total, tokens, positions, caps, drawn, out_tokens, out_logprobs,
            counter, stride, blocks, out_stride, MOST: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, MOST)
    inside = b < blocks
    score = tl.load(scores + row * blocks + b, mask=inside, other=float("-inf"))
    winner = tl.argmax(score, 0)
    token = tl.load(places + row * blocks + winner)
    tops = tl.load(best + row * blocks + b, mask=inside, other=float("-inf"))
    top = tl.max(tops, 0)
    parts = tl.load(total + row * blocks + b, mask=inside, other=0.0)
    whole = tl.log(tl.sum(parts * tl.exp(tops - top), 0)) + top
    slot = tl.load(slots + row)
    temperature = tl.load(heat + slot)
    scale = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    chosen = tl.load(logits + row * stride + token).to(tl.float32) * scale
    step = tl.load(counter)
    tl.store(out_tokens + step * out_stride + row, token)
    tl.store(out_logprobs + step * out_stride + row, chosen - whole)
    tl.store(tokens + slot, token)
    tl.store(drawn + slot, tl.load(drawn + slot) + 1)
    position = tl.load(positions + slot)
    tl.store(positions + slot, tl.minimum(position + 1, tl.load(caps + slot)))


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
    """Draws for logits [B, vocabulary] of the slots [B]; writes each slot's token, moves it on by one position, and
    puts token and log-prob into row `counter` of out ([steps, most rows])."""
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    device = logits.device
    scores, best, total = torch.empty(3, rows, blocks, dtype=torch.float32, device=device).unbind(0)
    places = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    _race[(rows, blocks)](
        logits, heat, seeds, drawn, scores if floors is None else floors, slots, scores, places, best, total,
        vocabulary, logits.stride(0), blocks, BLOCK, floors is not None, num_warps=8,
    )  # fmt: skip
    _settle[(rows,)](
        logits, heat, slots, scores, places, best, total, tokens, positions, caps, drawn, out[0], out[1], counter,
        logits.stride(0), blocks, out[0].stride(0), triton.next_power_of_2(blocks), num_warps=1,
    )  # fmt: skip
