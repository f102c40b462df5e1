"""The record of a step: its line of metrics, and a line for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airloop.runs.step_record import StepRecord
from airloop.success import METRIC
from airloop.watch.metrics.families import by_family

if TYPE_CHECKING:  # importing the learner imports torch, which reading a run does not need
    import numpy as np

    from airloop.learn.advantages import Batch
    from airloop.learn.report import Report
    from airloop.rollout.collected import Collected
    from airloop.watch.metrics.ledger import Ledger


def step_record(
    step: int,
    collected: Collected,
    batch: Batch,
    report: Report,
    times: Mapping[str, float],
    ledger: Ledger,
    facts: Mapping[str, Any],
) -> StepRecord:
    metrics = step_metrics(step, collected, report, times) | {"ledger": ledger.metrics} | dict(facts)
    return StepRecord(metrics, _episodes(collected, batch, report, ledger))


def _episodes(collected: Collected, batch: Batch, report: Report, ledger: Ledger) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [
        {
            "id": t.id,
            "reward": t.reward,
            "rewards": dict(t.rewards),
            "advantage": batch.advantages[t.id],
            "fate": "trained" if f"{t.id}#0" in report.logprobs else "zero advantage",
            "tokens": ledger.episodes[t.id],
            "logprobs": [_listed(report.logprobs.get(f"{t.id}#{i}")) for i in range(len(t.branches))],
            "entropies": [_short(_listed(report.entropies.get(f"{t.id}#{i}"))) for i in range(len(t.branches))],
        }
        for g in collected.groups
        for t in g.trajectories
    ]
    lines += [
        {
            "id": t.id,
            "reward": t.reward,
            "rewards": dict(t.rewards),
            "fate": d.reason,
            "tokens": ledger.episodes[t.id],
        }
        for d in collected.dropped
        for t in d.group.trajectories
    ]
    lines += [{"id": t.id, "fate": "infra_error", "tokens": ledger.episodes[t.id]} for t in collected.spoilt]
    return lines


def step_metrics(step: int, collected: Collected, report: Report, times: Mapping[str, float]) -> dict[str, Any]:
    """One line of metrics.jsonl: plain numbers, nested by origin. Means are over every scored episode, also of
    groups that were filtered out; null where there is none. `task` has them for each family of tasks. `rewards` and
    `successes` are those of single episodes, group by group."""
    groups = [*collected.groups, *(d.group for d in collected.dropped)]
    trajectories = [t for g in groups for t in g.trajectories]
    return {
        "kind": "train",
        "step": step,
        METRIC: _mean([t.metrics[METRIC] for t in trajectories if METRIC in t.metrics]),
        "reward": _mean([t.reward for t in trajectories]),
        "rewards": [t.reward for t in trajectories],
        "successes": [t.metrics.get(METRIC) for t in trajectories],
        "group_sizes": [len(g.trajectories) for g in groups],
        "components": _means([t.rewards for t in trajectories]),
        "best": _best([t.rewards for t in trajectories]),
        "turn_components": _means([turn for t in trajectories for turn in t.turn_rewards]),
        "metrics": _means([{k: v for k, v in t.metrics.items() if k != METRIC} for t in trajectories]),
        "task": by_family(trajectories),
        "groups_without_signal": sum(not g.has_signal for g in collected.groups),
        "rollout": dict(collected.stats),
        "learner": report.metrics,
        "times": dict(times),
    }


def _listed(values: np.ndarray | None) -> list[float]:
    """As JSON has them: with every digit of a float32."""
    return [] if values is None else values.tolist()


def _short(values: Sequence[float]) -> list[float]:
    """Entropies are looked at, never computed with: four places keep the record small."""
    return [round(value, 4) for value in values]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    return {
        name: _mean([row[name] for row in rows if name in row]) for name in sorted({k for row in rows for k in row})
    }


def _best(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each component its highest: what one episode reached is lost in a mean."""
    return {name: max(row[name] for row in rows if name in row) for name in sorted({k for row in rows for k in row})}
