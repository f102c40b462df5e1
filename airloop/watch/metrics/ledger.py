"""The ledger of a step: what became of every token that was sampled.

Each token is in exactly one column, and the columns add up to what the engine returned, always:

    trained          has a part in the loss
    zero_advantage   its group (credited by turn: its turn) scored alike, so nothing can be learned from it
    filtered         of a group that difficulty filtering left out
    infra_error      of an attempt that the machinery spoilt, or of a group that had too few left
    stale            left out of the loss: its probability now, or its trajectory's, is too far from that at sampling
                     (importance_mode "mask", geo_mask_*, sequence_mask_*)
    truncated        sampled, but in no sequence: a reply that was cut off while it was being written, or what came
                     behind a text that was to end it
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airloop.rollout.episode import component_totals
from airloop.types import Group, Trajectory

if TYPE_CHECKING:  # they import torch, which reading a ledger does not need
    import numpy as np

    from airloop.learn.advantages import Batch, TurnWeights
    from airloop.learn.batches import Row
    from airloop.learn.losses.sequence_mask import SequenceMask
    from airloop.rollout.collected import Collected

COLUMNS = ("trained", "zero_advantage", "filtered", "infra_error", "stale", "truncated")
# Columns that a person would not expect: what was lost. (Zero advantage has its own column in the display.)
LOST = ("filtered", "infra_error", "stale", "truncated")
# Classes of duration, each with as many episodes: enough to show a slope, few enough to have episodes in each.
DURATIONS = ("fastest", "fast", "slow", "slowest")
# Tasks named as dropped by the filter; the rest is counted.
NAMED = 8

Counts = Counter[str]
Entry = tuple[Trajectory, Counts]


@dataclass(frozen=True)
class Terms:
    """Of the loss: what decides whether a token of a batch has a part in it."""

    kl: bool = False  # with a KL term, tokens without advantage have a gradient too
    mask: tuple[float, float] | None = None  # lowest and highest p_trainer/p_sampler that is kept
    sequences: SequenceMask | None = None  # of whole trajectories


@dataclass(frozen=True)
class Ledger:
    metrics: dict[str, Any]  # as in metrics.jsonl
    episodes: dict[str, dict[str, int]]  # of each episode its tokens, by column


def account(
    collected: Collected,
    batch: Batch,
    logprobs: Mapping[str, np.ndarray],
    terms: Terms,
    weights: Mapping[str, TurnWeights],
) -> Ledger:
    """`logprobs`: the trainer's, by row of the batch; `weights` of the rewards, by environment."""
    entries = _entries(collected, batch, logprobs, terms)
    abandoned = int(collected.stats.get("abandoned_tokens", 0))
    total = sum((counts for _, counts in entries), Counter({"truncated": abandoned}))
    groups = [*collected.groups, *(d.group for d in collected.dropped if d.reason == "no_signal")]
    metrics = {
        **_row(total),
        "by_task": _by(entries, lambda t: t.task.curve),
        "by_ending": _by(entries, lambda t: t.ending),
        "by_duration": _by_duration(entries),
        "variance": variances(groups, weights),
        "paid": paid([t for group in groups for t in group.trajectories], weights),
        "groups": {
            "sampled": len(groups),
            "silent": sum(not group.has_signal for group in groups),
        },
        "filter": filter_bias(collected),
    }
    return Ledger(metrics, {t.id: {name: counts[name] for name in COLUMNS if counts[name]} for t, counts in entries})


def token_fates(row: Row, logs: np.ndarray, left_out: bool, terms: Terms) -> Counts:
    """How many of the trained tokens of a row of the batch came to what, from their log-ratios, and whether their
    trajectory is left out as a whole."""
    import numpy as np

    from airloop.learn.advantages import token_advantages

    kept = np.full(len(logs), not left_out)
    if terms.mask:
        ratios = np.exp(np.minimum(logs, 700.0))
        kept &= (terms.mask[0] <= ratios) & (ratios <= terms.mask[1])  # one that is not a number is not kept
    learned = kept & ((np.asarray(token_advantages(row)) != 0) | terms.kl)
    counts = {"stale": ~kept, "trained": learned, "zero_advantage": kept & ~learned}
    return Counter({name: int(of_it.sum()) for name, of_it in counts.items()})


def _entries(collected: Collected, batch: Batch, logprobs: Mapping[str, np.ndarray], terms: Terms) -> list[Entry]:
    import numpy as np

    rows = {row.key: row for row in batch.rows}

    def in_batch(trajectory: Trajectory) -> Counts:
        counts: Counts = Counter()
        logs: dict[str, np.ndarray] = {}
        for i, branch in enumerate(trajectory.branches):
            row = rows.get(f"{trajectory.id}#{i}")
            if row is None:
                counts["zero_advantage"] += sum(branch.train)
            elif any(row.train):
                logs[row.key] = logprobs[row.key].astype(np.float64) - row.trained_logprobs
        left_out = terms.sequences is not None and any(
            terms.sequences.cut([log for own in logs.values() for log in own.tolist()])
        )
        for key, own in logs.items():
            counts.update(token_fates(rows[key], own, left_out, terms))
        return counts

    entries = [(t, in_batch(t)) for g in collected.groups for t in g.trajectories]
    for dropped in collected.dropped:
        fate = "filtered" if dropped.reason == "no_signal" else "infra_error"
        entries += [(t, Counter({fate: t.sampled_tokens})) for t in dropped.group.trajectories]
    entries += [(t, Counter({"infra_error": t.sampled_tokens})) for t in collected.spoilt]
    for trajectory, counts in entries:
        counts["truncated"] += returned_tokens(trajectory) - counts.total()
    return entries


def returned_tokens(trajectory: Trajectory) -> int:
    """What the engine returned, counted apart from the sequences that training sees."""
    return sum(len(turn.sampled.token_ids) for turn in trajectory.turns if turn.sampled is not None)


def _row(counts: Counts) -> dict[str, int]:
    return {"tokens": counts.total(), **{name: counts[name] for name in COLUMNS}}


def _by(entries: Sequence[Entry], key: Callable[[Trajectory], str]) -> dict[str, dict[str, int]]:
    found: dict[str, Counts] = {}
    episodes: Counts = Counter()
    for trajectory, counts in entries:
        name = key(trajectory)
        found.setdefault(name, Counter()).update(counts)
        episodes[name] += 1
    return {name: {"episodes": episodes[name], **_row(found[name])} for name in sorted(found)}


def _by_duration(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """If what is lost is lost among the slow, training leans to the fast (E8)."""
    ordered = sorted(entries, key=lambda entry: entry[0].seconds)
    found: dict[str, dict[str, float]] = {}
    for i, name in enumerate(DURATIONS):
        part = ordered[i * len(ordered) // len(DURATIONS) : (i + 1) * len(ordered) // len(DURATIONS)]
        if part:
            counts = sum((counts for _, counts in part), Counter())
            found[name] = {"episodes": len(part), "up_to_s": part[-1][0].seconds, **_row(counts)}
    return found


def variances(groups: Sequence[Group], weights: Mapping[str, TurnWeights]) -> dict[str, Any]:
    """Within groups, averaged over them: of the reward, and of what each component adds to it. Where a component
    varies and the sum does not, components cancel (E4)."""
    by_name: dict[str, list[float]] = {}
    for group in groups:
        parts = [_weighted(t, weights) for t in group.trajectories]
        for name in {name for part in parts for name in part}:
            by_name.setdefault(name, []).append(statistics.pvariance([part.get(name, 0.0) for part in parts]))
    sums = [statistics.pvariance(group.rewards) for group in groups]
    return {
        "sum": statistics.fmean(sums) if sums else 0.0,
        "components": {name: math.fsum(values) / len(groups) for name, values in sorted(by_name.items())},
    }


def paid(trajectories: Sequence[Trajectory], weights: Mapping[str, TurnWeights]) -> dict[str, float]:
    """What each component adds to the reward, in the mean over episodes: where reward comes from (E10)."""
    parts = [_weighted(t, weights) for t in trajectories]
    names = sorted({name for part in parts for name in part})
    return {name: math.fsum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}


def _weighted(trajectory: Trajectory, weights: Mapping[str, TurnWeights]) -> dict[str, float]:
    own = weights.get(trajectory.task.env)
    totals = component_totals(trajectory.rewards, trajectory.turn_rewards, own.modes if own else {})
    # What training itself adds to a reward ("overlong") has no weight of its own: it counts as it is.
    return {name: value * (own.weights.get(name, 1.0) if own else 1.0) for name, value in totals.items()}


def filter_bias(collected: Collected) -> dict[str, Any]:
    """What difficulty filtering leaves out, and what that does to the mean reward; empty where it left out nothing."""
    dropped = [d.group for d in collected.dropped if d.reason == "no_signal"]
    if not dropped:
        return {}
    kept = [r for group in collected.groups for r in group.rewards]
    left_out = [r for group in dropped for r in group.rewards]
    names = sorted({group.task.id for group in dropped})
    return {
        "groups": len(dropped),
        "tasks": dict(sorted(Counter(group.task.curve for group in dropped).items())),
        "ids": names[:NAMED] + ([f"and {len(names) - NAMED} more"] if len(names) > NAMED else []),
        "reward_all": statistics.fmean(kept + left_out),
        "reward_kept": statistics.fmean(kept) if kept else None,
        "reward_dropped": statistics.fmean(left_out),
    }


def one_line(ledger: Mapping[str, Any]) -> str:
    """What was lost of a step's tokens; empty when nothing was."""
    lost = {name: ledger[name] for name in LOST if ledger[name]}
    if not lost:
        return ""
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in lost.items())
    text = f"tokens: {ledger['tokens']} sampled, {ledger['trained']} trained; lost: {parts}"
    bias = ledger["filter"]
    if bias:
        tasks = ", ".join(f"{name} {count}" for name, count in bias["tasks"].items())
        kept = "none" if bias["reward_kept"] is None else f"{bias['reward_kept']:.3f}"
        text += f"; filter left out {tasks}: mean reward {bias['reward_all']:.3f} over all, {kept} over what is trained"
    return text
