"""Alarms: what is wrong while a run goes on. Each has evidence and a fix; severity decides what happens next.

An alarm is a small object that is shown every step's metrics and ledger and says whether its condition holds. It is
raised when the condition has held for `patience` steps in a row, and cleared when it has been gone for as long: so
one odd step raises nothing, and a value that hovers around its threshold does not flicker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

# note: the run goes on. pause: the run stops after this step, with everything saved, and can be resumed when mended.
# stop: no further update may be made; what was sampled is saved.
Severity = Literal["note", "pause", "stop"]


@dataclass(frozen=True)
class Alarm:
    """Raised at a step, as it goes to the terminal, to alarms.jsonl in the run's directory and to every sink."""

    id: str  # of the failure catalogue
    name: str
    severity: Severity
    step: int
    seen: str  # with numbers
    why: str
    fix: str


@dataclass(frozen=True)
class Sign:
    """What a watch saw in one step that is not as it should be."""

    seen: str
    why: str
    fix: str


class Watch(Protocol):
    """One thing that is looked at every step. The reason for a threshold stands beside it."""

    id: str
    name: str
    severity: Severity
    patience: int

    def look(self, step: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Sign | None:
        """`step`: this step's metrics as in metrics.jsonl, ledger included; `before`: those of the steps before."""
        ...
