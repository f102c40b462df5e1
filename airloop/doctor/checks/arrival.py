"""Does what is trained reach what is served? The trained weights are changed, a little, and both sides are asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airloop.doctor.base import Finding, check, passed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from airloop.doctor.case import Case
    from airloop.learn.batches import Row
    from airloop.learn.rounding import Distances

# How far the change moves log-probs (at PROOF_TEMPERATURE), in the mean. Rounding to bfloat16 moves them by 0.003 to
# 0.03, so a tenth of the change that is missing, or too much, can be told from it; at ten times as much the layers
# begin to amplify every rounding, and healthy networks disagree with themselves.
MOVE, ENOUGH, TOO_MUCH = 0.3, 0.15, 0.6
TRIES = 8
# Where the search begins: numbers of an adapter's second matrix, which is zero at first; others relative to their size.
START, LEAP = 0.03, 16.0
# (An adapter's first matrix too, up to as much again: where it stays behind, that is missed as the second would be.)
# What is asked: the ends of prompts. That weights arrive does not depend on what stands before.
PROMPT_TOKENS, REPLIES, REPLY_TOKENS = 64, 4, 12
# Of the change, the share that is served may be off by a tenth and by what rounding does to such a share (four times
# its standard error). The old weights are served where log-probs are this near to the old ones, in units of the change.
SHARE_OFF, SHARE_ERRORS, OLD = 0.1, 4.0, 0.25


@dataclass(frozen=True)
class Arrival:
    """What was seen after the change."""

    served: float  # the largest change of a log-prob that the engine served
    moved: float  # the mean change of the trainer's
    share: float  # of the trainer's change that the engine made too: 1 where it serves the same weights
    from_old: float  # mean distance of what the engine served from what the trainer had said before the change
    distances: Distances
    stale_layer: str = ""  # a part of the weights that stayed behind

    @property
    def share_off(self) -> float:
        error = self.distances.rounding / max(self.moved * math.sqrt(self.distances.tokens), 1e-12)
        return SHARE_OFF + SHARE_ERRORS * error

    @property
    def right(self) -> bool:
        return self.distances.healthy and abs(self.share - 1) <= self.share_off and not self.stale_layer


@check("F2", stage="proof", title="the engine serves the trained weights")
def adapter_arrives(case: Case) -> Finding:
    """The change is scaled until the trainer's own log-probs move by a set amount, and what both sides say after it is
    judged by what rounding does to the changed network (F8): the same tokens computed in more bits."""
    from airloop.doctor.proof_tools import CHANGE

    found = _changed(case)
    seen = (
        f"weights perturbed: served log-probs moved by up to {found.served:.2g}, the trainer's by {found.moved:.2g} in "
        "the mean"
    )
    if found.moved < CHANGE:
        return Finding(
            "fail",
            seen,
            "the trainer does not compute with the weights that it trains: no update would change anything",
            "the parameters that the optimiser holds must be those that the model's forward pass uses.",
        )
    if found.right:
        return passed(f"{seen}; {found.share:.0%} of the change is served; {found.distances}")
    return Finding(
        "fail",
        f"{seen}; {found.distances} (at most {found.distances.most:.2g})",
        _why(found),
        "publish() must bring the trained weights to whatever the engine computes with: see refresh() of its runner, "
        "and that engine and learner have the same policy."
        if found.distances.wrong_side != "the trainer"
        else 'trainer.model.impl = "hf" takes our own training pass out.',
    )


def _why(found: Arrival) -> str:
    if found.from_old < OLD * found.moved:
        return "the engine goes on serving the old weights: every rollout would come from the model of step 0"
    if found.distances.wrong_side == "the trainer":
        return "the trainer's own pass computes something else than the model's layers do with these weights"
    if found.stale_layer:
        return (
            f"{found.stale_layer} stays behind: what the engine is off by is, token by token, what the old weights of "
            "this part alone do to the trainer"
        )
    return (
        f"engine and trainer do not agree after it: they have different weights ({found.share:.0%} of the change is "
        "served)"
    )


def _changed(case: Case) -> Arrival:
    from airloop.doctor.proof_tools import (
        at_high_temperature,
        change,
        first_prompts,
        gap,
        restored_after,
        sample_replies,
        second_look,
        while_paused,
    )
    from airloop.doctor.stale_layer import find_stale_layer
    from airloop.learn.optimiser import assign
    from airloop.learn.rounding import distances, mean_distance

    parts, learner = case.parts, case.parts.learner
    prompts = [prompt[-PROMPT_TOKENS:] for prompt in first_prompts(case, REPLIES)]
    prompts = [prompts[i % len(prompts)] for i in range(REPLIES)]
    with restored_after(case) as start, at_high_temperature(parts):
        before = sample_replies(case, prompts, REPLY_TOKENS)
        perturb(case, start["weights"], [answer.row(i) for i, answer in enumerate(before)])
        after = sample_replies(case, prompts, REPLY_TOKENS)
        rows = [answer.row(i) for i, answer in enumerate(after)]
        new = learner.logprobs(rows)
        measured = while_paused(case, lambda: distances(learner, rows, new))
        changed = [weight.detach().clone() for weight in learner.optimiser.weights]
        assign(learner.optimiser.weights, start["weights"])
        old = learner.logprobs(rows)
        moved, from_old, stale_layer = mean_distance(new, old), gap(rows, old), ""
        if from_old >= OLD * moved:  # where all weights stay behind, nothing else has to be looked for
            assign(learner.optimiser.weights, changed)
            measured = measured if measured.healthy else second_look(case, prompts, measured)
            stale_layer = find_stale_layer(case, prompts, rows, start["weights"])
    served = max(change(a, b) for a, b in zip(before, after, strict=True))
    return Arrival(served, moved, _share(rows, new, old), from_old, measured, stale_layer)


def _share(rows: Sequence[Row], new: dict[str, list[float]], old: dict[str, list[float]]) -> float:
    """The slope of the engine's changes over the trainer's: old weights give 0, half of an adapter about a half."""
    both = total = 0.0
    for row in rows:
        for engine, now, then in zip(row.trained_logprobs, new[row.key], old[row.key], strict=True):
            both += (engine - then) * (now - then)
            total += (now - then) ** 2
    return both / total if total else 0.0


def perturb(case: Case, weights: Sequence[Tensor], rows: Sequence[Row]) -> float:
    """Adds noise to `weights` in the learner's, of a size at which the trainer's log-probs of the rows move by about
    MOVE, or by what comes nearest to it. Returns how far they move."""
    from airloop.learn.rounding import mean_distance

    learner = case.parts.learner
    old = learner.logprobs(rows)
    size, low, high = START, 0.0, math.inf
    tried: dict[float, float] = {}
    for _ in range(TRIES):
        _add_noise(case, weights, size)
        moved = mean_distance(learner.logprobs(rows), old)
        tried[size] = moved = moved if math.isfinite(moved) else math.inf
        if ENOUGH <= moved <= TOO_MUCH:
            return moved
        low, high = (max(low, size), high) if moved < MOVE else (low, min(high, size))
        if low and high < math.inf:
            size = math.sqrt(low * high)
        else:
            size *= min(LEAP, max(1 / LEAP, MOVE / max(moved, 1e-9)))
    size = min(tried, key=lambda s: abs(math.log(max(tried[s], 1e-9) / MOVE)))
    _add_noise(case, weights, size)
    return tried[size]


def _add_noise(case: Case, weights: Sequence[Tensor], size: float) -> None:
    """The same direction whatever the size."""
    import torch

    from airloop.learn.optimiser import assign

    learner = case.parts.learner
    assign(learner.optimiser.weights, weights)
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for name, weight in zip(learner.optimiser.names, learner.optimiser.weights, strict=True):
            generator = generators.setdefault(weight.device, torch.Generator(weight.device).manual_seed(0))
            noise = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=weight.dtype)
            weight.add_(noise, alpha=_scale(name, weight, size))
    if learner.shards:
        learner.shards.gather()


def _scale(name: str, weight: Tensor, size: float) -> float:
    if "lora_B" in name:
        return size
    return (min(size / START, 1.0) if "lora_A" in name else size) * float(weight.float().square().mean().sqrt())
