"""Which component of the reward pays for something else than success, and the line that would not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.config.toml import toml_value
from airloop.learn.overlong import COMPONENT as OVERLONG
from airloop.stats.student import student_share
from airloop.stats.welch import Moments, welch
from airloop.success import METRIC

# A component whose part in the reward grows by less than this is no reason for anything, however certain.
LEAST = 0.01
# Nor is one that may have grown by chance: there are several components, and the alarms ask in every step.
CERTAIN = 0.999


@dataclass(frozen=True)
class RewardSource:
    """A component whose part in the reward has grown: its weighted mean over episodes, early and late."""

    name: str
    early: float
    late: float

    def __str__(self) -> str:
        return f"{self.name} ({self.early:.3g} → {self.late:.3g} of the reward)"


def paid(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What each component adds to the reward, weighted, in the mean over each step's episodes."""
    rows = [row for line in lines if line.get("group_sizes") and (row := line.get("ledger", {}).get("paid"))]
    return {name: [row.get(name, 0.0) for row in rows] for name in sorted({name for row in rows for name in row})}


def find_reward_source(
    early: Mapping[str, Sequence[float]], late: Mapping[str, Sequence[float]], successes: Collection[str]
) -> RewardSource | None:
    """Of the components other than success itself, the one whose part has grown most, without doubt. A price that is
    paid less often pays for nothing."""
    grown = []
    for name, values in late.items():
        was, now = Moments.of(early.get(name) or [0.0] * len(values)), Moments.of(values)
        if name in successes or min(was.n, now.n) < 2 or now.mean <= 0 or now.mean - was.mean < LEAST:
            continue
        if student_share(*welch(was, now)) >= CERTAIN:
            grown.append(RewardSource(name, was.mean, now.mean))
    return max(grown, key=lambda source: source.late - source.early, default=None)


def corrected(source: RewardSource, rewards: Mapping[str, Mapping[str, float]], successes: Mapping[str, str]) -> str:
    """What to write instead. `rewards`: the weights of each environment, by its title; `successes`: its success."""
    if source.name == OVERLONG:
        return 'trainer.loss.overlong = "off"'
    title, weights = next(((t, w) for t, w in rewards.items() if w.get(source.name)), ("", {}))
    success = successes.get(title, METRIC)
    where = "[[orchestrator.env]]" + (f' (name = "{title}")' if len(rewards) > 1 else "")
    if not weights.get(success):
        return f"in {where} pay {source.name} less, or only together with {success}"
    return f"in {where} rewards = {{ {success} = {toml_value(float(weights[success]))} }}"


def weights_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of a run's environments, as its last line has them; empty in runs of older versions."""
    found = lines[-1].get("plan", {}).get("rewards", {}) if lines else {}
    return {title: dict(weights) for title, weights in found.items()}


def successes_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name of each environment's success, by its title."""
    found = lines[-1].get("plan", {}).get("success", {}) if lines else {}
    return {title: name for title, name in found.items() if name}


def reward_source_between(
    early: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]]
) -> tuple[RewardSource, str] | None:
    """The component that pays for what changed between two parts of a run, and the corrected line."""
    successes = successes_of(late)
    if not successes:
        return None
    source = find_reward_source(paid(early), paid(late), {*successes.values()})
    return (source, corrected(source, weights_of(late), successes)) if source else None
