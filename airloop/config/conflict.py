"""What a config's keys say together, and must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Conflict:
    """A value, or several, that cannot stand. `changes` are the corrected keys."""

    keys: tuple[str, ...]
    problem: str
    changes: dict[str, Any] = field(default_factory=dict)
    id: str = "A11"  # of the failure catalogue
