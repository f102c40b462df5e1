"""A rule: what is looked at in every step of a run, and what is said when it is not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airloop.types import Severity


@dataclass(frozen=True)
class Sign:
    """What a watch saw in one step that is not as it should be."""

    seen: str
    why: str
    fix: str


class AlarmRule(Protocol):
    """One thing that is looked at every step. The reason for a threshold stands beside it."""

    id: str
    name: str
    severity: Severity
    patience: int

    def look(self, step: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Sign | None:
        """`step`: this step's metrics as in metrics.jsonl, ledger included; `before`: those of the steps before."""
        ...


Step = Mapping[str, Any]
Condition = Callable[[Step, Sequence[Step]], Sign | None]


@dataclass
class Rule:
    """An AlarmRule whose condition is a function of the step's metrics and of those before."""

    id: str
    name: str
    severity: Severity
    patience: int
    condition: Condition

    def look(self, step: Step, before: Sequence[Step]) -> Sign | None:
        return self.condition(step, before)


RULES: list[Rule] = []


def watch(id: str, severity: Severity = "note", patience: int = 1) -> Callable[[Condition], Condition]:
    """Registers a condition under the function's name."""

    def register(condition: Condition) -> Condition:
        RULES.append(Rule(id, condition.__name__, severity, patience, condition))
        return condition

    return register
