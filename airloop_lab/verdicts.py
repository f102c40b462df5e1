"""From paired differences to a verdict. Pure functions: the rule was written before the numbers were there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airloop.stats.intervals import LEVEL, Interval, fewest, gain_interval, student_mean
from airloop_lab.hypothesis_file import FEWEST_SEEDS, Rule

Verdict = Literal["supported", "rejected", "undecided"]
Task = tuple[str, str]  # environment, task
# Of each seed, each task's difference: changed less base, mean of its episodes.
Differences = Mapping[int, Mapping[Task, float]]


@dataclass(frozen=True)
class Difference:
    """The mean over seeds and tasks. Seeds differ (other weights come out) and so do tasks (some are harder): both
    doubts count, so the distances of their ends from the mean are added as independent errors are. The wider of the two
    alone calls noise a finding too often (tests/stats/ has the simulation)."""

    over_seeds: Interval
    over_rows: Interval

    @property
    def interval(self) -> Interval:
        seeds, rows = self.over_seeds, self.over_rows
        below = math.hypot(seeds.mean - seeds.low, rows.mean - rows.low)
        above = math.hypot(seeds.high - seeds.mean, rows.high - rows.mean)
        low, high = seeds.mean - below, seeds.mean + above  # and never, by rounding, inside either
        low, high = min(low, seeds.low, rows.low), max(high, seeds.high, rows.high)
        return Interval(seeds.mean, low, high, seeds.n, seeds.level)

    @property
    def too_few(self) -> str:
        """Said where there are too few tasks for a verdict; else empty."""
        rows = self.over_rows
        return rows.word if rows.n < fewest(rows.level) else ""


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    why: str


def difference(by_seed: Differences, level: float = LEVEL, share: bool = False) -> Difference:
    """`share`: of a metric that lies between 0 and 1."""
    seeds = [math.fsum(tasks.values()) / len(tasks) for tasks in by_seed.values()]
    by_task: dict[Task, list[float]] = {}
    for tasks in by_seed.values():
        for task, value in tasks.items():
            by_task.setdefault(task, []).append(value)
    rows = [math.fsum(values) / len(values) for _, values in sorted(by_task.items())]
    return Difference(student_mean(seeds, level), gain_interval(rows, level, share))


def decide(rule: Rule, found: Difference, base_gain: Interval | None = None) -> Decision:
    """`found`: changed less base; `base_gain`: what the base learned."""
    seeds = found.over_seeds.n
    if seeds < FEWEST_SEEDS:
        return Decision("undecided", f"only {seeds} of the {FEWEST_SEEDS} pairs of runs that a verdict needs")
    if found.too_few:
        return Decision("undecided", f"{found.too_few}: orchestrator.eval.num_examples says how many there are")
    if rule.base_gain is not None and (base_gain is None or base_gain.low < rule.base_gain):
        gained = "nothing that was measured" if base_gain is None else base_gain.signed
        return Decision(
            "undecided",
            f"the base itself gained {gained}, not {rule.base_gain:g} without doubt: nothing to compare with",
        )
    return by_rule(rule, found.interval)


def by_rule(rule: Rule, found: Interval) -> Decision:
    """What the rule says of the interval that counts."""
    match rule.prediction:
        case "higher":
            return _beyond(found, rule.margin, "above", "below")
        case "lower":
            return _beyond(_mirrored(found), rule.margin, "below", "above", sign=-1)
        case "same":
            return _within(found, rule.margin)
    raise ValueError("a sweep predicts nothing, so nothing is decided")


def _mirrored(found: Interval) -> Interval:
    return Interval(-found.mean, -found.high, -found.low, found.n, found.level)


def _beyond(found: Interval, margin: float, inside: str, outside: str, sign: int = 1) -> Decision:
    shown = (found if sign > 0 else _mirrored(found)).signed
    bound = f"{sign * margin:+g}" if margin else "0"
    if found.low > margin:
        return Decision("supported", f"{shown} is all {inside} {bound}")
    if found.high < margin:
        return Decision("rejected", f"{shown} is all {outside} {bound}")
    return Decision("undecided", f"{shown} has {bound} inside: more seeds or more steps would tell")


def _within(found: Interval, margin: float) -> Decision:
    if -margin <= found.low and found.high <= margin:
        return Decision("supported", f"{found.signed} is all within ±{margin:g}")
    if found.low > margin or found.high < -margin:
        return Decision("rejected", f"{found.signed} is all outside ±{margin:g}")
    return Decision("undecided", f"{found.signed} is partly outside ±{margin:g}: more seeds or more steps would tell")
