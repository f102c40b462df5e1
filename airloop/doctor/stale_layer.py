"""A part of the weights that stays behind while the rest arrives: one layer's, or one matrix of every layer.

In a deep network that rounds to bfloat16 one layer of 24 moves log-probs no farther than rounding does, so a mean
distance cannot tell them apart. Their directions can: without its part of the change, the engine is off by just what
putting the old weights back does to the trainer, token by token. Rounding errs in another direction every time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from airloop.learn.batches import Row
from airloop.learn.optimiser import assign

if TYPE_CHECKING:
    from airloop.doctor.case import Case
    from airloop.learn.learner import Learner

Logprobs = Mapping[str, Sequence[float]]  # of the trained tokens, by row
# A part is worth a forward pass where a straight line says that it explains so much of what the engine is off by.
EXPLAINS, MOST_PASSES = 0.25, 4
# It stays behind where what it does and what the engine is off by go together to this degree, and are as large.
TOGETHER, SLOPE = 0.6, (0.6, 1.5)


def find_stale_layer(case: Case, prompts: Sequence[tuple[int, ...]], rows: Sequence[Row], old: Sequence[Tensor]) -> str:
    """Its name, or nothing. The learner holds the changed weights; `old` are those before the change. What the first
    rows show must show in others, which begin in different ways (see other_beginnings)."""
    from airloop.doctor.proof_tools import more_rows, while_paused

    learner = case.parts.learner
    if learner.shards:  # each rank has a piece of every gradient
        return ""
    parts = _parts(learner.optimiser.names)
    off = _off(learner, rows)
    likely = while_paused(case, lambda: _likely(learner, parts, rows, off, old))
    suspects = [name for name in likely if _is_behind(learner, parts[name], rows, off, old)]
    if not suspects:
        return ""
    others = more_rows(case, prompts)
    off = _off(learner, others)
    return next((name for name in suspects if _is_behind(learner, parts[name], others, off, old)), "")


def _parts(names: Sequence[str]) -> dict[str, list[int]]:
    """Numbers of weights, by layer and by what they are in every layer."""
    parts: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        if found := re.search(r"\.layers\.(\d+)\.(?:.*?\.)?(\w+?)\.(?:lora_|weight|bias)", name):
            parts.setdefault(f"layer {found[1]}", []).append(i)
            parts.setdefault(f"{found[2]} of every layer", []).append(i)
        else:
            parts.setdefault(name, []).append(i)
    return {name: part for name, part in parts.items() if len(part) < len(names)}


def _off(learner: Learner, rows: Sequence[Row]) -> Logprobs:
    """How far the engine's log-probs are from the trainer's."""
    own = learner.logprobs(rows)
    return {row.key: [a - b for a, b in zip(row.trained_logprobs, own[row.key], strict=True)] for row in rows}


def _likely(
    learner: Learner, parts: Mapping[str, list[int]], rows: Sequence[Row], off: Logprobs, old: Sequence[Tensor]
) -> list[str]:
    effects = [
        0.0 if slope is None else float(slope.float().mul_((then.to(now) - now).to(slope.device).float()).sum())
        for slope, then, now in zip(
            learner.slopes(rows, off), old, [w.detach() for w in learner.optimiser.weights], strict=True
        )
    ]  # a slope is where the optimiser's masters are, which is the CPU's memory with offload
    size = max(float(_flat(off).square().sum()), 1e-24)
    explains = {name: sum(effects[i] for i in part) / size for name, part in parts.items()}
    return sorted((n for n in explains if explains[n] > EXPLAINS), key=lambda n: -explains[n])[:MOST_PASSES]


def _is_behind(
    learner: Learner, part: Sequence[int], rows: Sequence[Row], off: Logprobs, old: Sequence[Tensor]
) -> bool:
    """Whether the engine is off by what the old weights of this part make of the trainer's log-probs."""
    weights = [learner.optimiser.weights[i] for i in part]
    new = [w.detach().clone() for w in weights]
    assign(weights, [old[i] for i in part])
    without = _off(learner, rows)
    assign(weights, new)
    seen = _flat(off)
    effect = seen - _flat(without)
    both, size = float(seen @ effect), float(effect.norm())
    if not math.isfinite(both) or not size:
        return False
    return both >= TOGETHER * size * float(seen.norm()) and SLOPE[0] <= both / size**2 <= SLOPE[1]


def _flat(logprobs: Logprobs) -> Tensor:
    return torch.tensor([lp for key in sorted(logprobs) for lp in logprobs[key]], dtype=torch.float64)
