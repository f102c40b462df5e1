"""Who may still write a run: the processes of its last session.

A machine that was paused and taken for lost comes back with its ranks in the middle of what they were doing, after the
run was resumed elsewhere. Every start of a run is a session of its own, by number; whoever is of an earlier one stops
before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airloop.errors import AirError


class Overtaken(AirError):
    """The run was resumed elsewhere since this process was started for it."""

    def __init__(self, run: str, session: int) -> None:
        super().__init__(
            f"This process is of session {session} of {run}, which has been resumed since: it was paused, or its "
            "machine was, and taken for lost. Nothing that it does is written any more.",
            "there is nothing to do: the run goes on without it.",
        )


def is_overtaken(session: int, status: Mapping[str, Any]) -> bool:
    """`session`: a process' own, counted from 1; 0 for one that only reads. `status`: what status.json says."""
    return 0 < session < len(status.get("sessions", []))
