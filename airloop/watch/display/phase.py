"""A phase of a command: what is being done, how far it is, and how long it still takes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from airloop.text.figures import duration
from airloop.waits import WAITS


@dataclass
class Phase:
    text: str
    total: int = 0  # pieces; 0 where nobody knows
    usual_s: float | None = None  # what the last one of its kind took
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    moved: float = 0.0  # when a piece was done last
    detail: str = ""
    told: bool = False  # whether it has been said how far it is

    @property
    def kind(self) -> str:
        """The same for phases that come again: steps, evaluations."""
        return re.sub(r"\d+", "#", self.text)

    def lasted(self) -> float:
        return time.monotonic() - self.began

    def advance(self, detail: str = "") -> None:
        self.done += 1
        self.moved = time.monotonic()
        self.detail = detail

    def left(self) -> float | None:
        """Seconds, by the pace so far, or by what this took the last time."""
        if 0 < self.done < self.total:
            moved = max(self.moved, self.began)
            each, spent = (moved - self.began) / self.done, time.monotonic() - moved
            return max(each, spent) * (self.total - self.done) - spent  # a piece that lasts longer is taken for typical
        if not self.total and self.usual_s and self.usual_s > self.lasted():
            return self.usual_s - self.lasted()
        return None

    def line(self) -> str:
        """`supervised start 12/30, loss 0.61, 3 min left`"""
        parts = [f"{self.text} {min(self.done, self.total)}/{self.total}" if self.total else self.text]
        parts += [self.detail] if self.detail else []
        left = self.left()
        if left is None or not self.total:
            parts.append(f"{duration(self.lasted())} so far")
        if left is not None:
            parts.append(f"{'' if self.total else 'about '}{duration(left)} left")
        if not self.done and (waited := waited_for()):
            parts.append(waited)
        return ", ".join(parts)


def waited_for() -> str:
    """Of what is waited for now, what says how far it is, or else what began last."""
    waits = WAITS.open()
    if moving := [wait for wait in waits if wait.so_far]:
        return f"{moving[-1].what}: {moving[-1].so_far}"
    return f"waiting for {waits[-1].what} by {waits[-1].owner}" if waits else ""
