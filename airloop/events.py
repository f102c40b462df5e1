"""Events of a run, as the display and every sink receive them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from airloop.types import Alarm

Say = Callable[[str], None]  # tells the user a sentence


class Watcher(Protocol):
    """The terminal, a sink: receives events, cannot affect the run."""

    def phase(self, text: str, total: int = 0) -> None:
        """What is being done from now on, and in how many pieces, if that is known."""

    def advance(self, detail: str = "") -> None:
        """One more piece of the phase is done. `detail` is shown beside how far it is: a loss, say."""

    def step(self, metrics: dict[str, Any]) -> None:
        """A step was accepted; its line of metrics.jsonl."""

    def evaluated(self, metrics: dict[str, Any]) -> None:
        """Held-out tasks were played; the evaluation's line of metrics.jsonl."""

    def alarm(self, alarm: Alarm) -> None:
        """An alarm was raised or cleared."""

    def say(self, text: str) -> None:
        """A sentence for whoever watches."""
