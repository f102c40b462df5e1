"""Which component of the reward pays for something else than success, and the line that would not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.config.toml import toml_value
from airloop.learn.overlong import COMPONENT as OVERLONG
from airloop.success import common_name

# A component that adds less than this to the reward, in its mean over episodes, is no reason for anything.
LEAST = 0.01


@dataclass(frozen=True)
class Payer:
    """A component whose part in the reward has grown: its weighted mean over episodes, early and late."""

    name: str
    early: float
    late: float

    def __str__(self) -> str:
        return f"{self.name} ({self.early:.3g} → {self.late:.3g} of the reward)"


def paid(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What each component adds to the reward, weighted, in the mean over the steps' episodes."""
    rows = [(sum(line["group_sizes"]), line.get("ledger", {}).get("paid")) for line in lines if line.get("group_sizes")]
    known = [(count, row) for count, row in rows if row]
    total = sum(count for count, _ in known)
    names = sorted({name for _, row in known for name in row})
    return {name: sum(count * row.get(name, 0.0) for count, row in known) / total for name in names}


def find_payer(early: Mapping[str, float], late: Mapping[str, float], success: str) -> Payer | None:
    """Of the components other than success itself, the one whose part has grown most, if any has."""
    grown = {name: late[name] - early.get(name, 0.0) for name in late if name != success}
    name = max(grown, key=lambda n: grown[n], default=None)
    return Payer(name, early.get(name, 0.0), late[name]) if name is not None and grown[name] >= LEAST else None


def corrected(payer: Payer, rewards: Mapping[str, Mapping[str, float]], success: str) -> str:
    """What to write instead. `rewards`: the weights of each environment, by its title."""
    if payer.name == OVERLONG:
        return 'trainer.loss.overlong = "off"'
    title, weights = next(((t, w) for t, w in rewards.items() if w.get(payer.name)), ("", {}))
    kept = {n: w for n, w in weights.items() if w and n != payer.name}
    if weights.get(success):
        kept = {success: weights[success]}
    where = "[[orchestrator.env]]" + (f' (name = "{title}")' if len(rewards) > 1 else "")
    if not kept:
        return f"in {where} pay for {success} itself, not only for {payer.name}"
    named = ", ".join(f"{name} = {toml_value(float(weight))}" for name, weight in kept.items())
    return f"in {where} rewards = {{ {named} }}"


def weights_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of a run's environments, as its last line has them; empty in runs of older versions."""
    found = lines[-1].get("plan", {}).get("rewards", {}) if lines else {}
    return {title: dict(weights) for title, weights in found.items()}


def payer_between(early: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]]) -> tuple[Payer, str] | None:
    """The component that pays for what changed between two parts of a run, and the corrected line."""
    success = common_name(late)
    payer = find_payer(paid(early), paid(late), success) if success else None
    return (payer, corrected(payer, weights_of(late), success)) if payer and success else None
