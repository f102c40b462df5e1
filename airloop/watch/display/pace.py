"""How long a run will still take, from what its last steps and evaluations took."""

from __future__ import annotations

import statistics
from collections import deque

from airloop.text.figures import duration

RECENT = 8  # steps: long enough to even out tasks, short enough to follow replies that grow
# Quartiles closer than this are one number to a person.
ALIKE = 0.15


class Pace:
    """Told of steps and evaluations as they end. The first step is left out: it compiles and fills caches."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._evaluations: deque[float] = deque(maxlen=RECENT)
        self._since: float | None = None  # the end of the last step, or of the evaluation after it
        self._evaluating: float | None = None

    def step_ended(self, now: float, sampled: bool = True) -> None:
        """`sampled`: not read back from disk after a restart, which takes no time and says nothing of what is left."""
        if self._since is not None and sampled:
            self._steps.append(now - self._since)
        self._since = now

    def evaluation_began(self, now: float) -> None:
        self._evaluating = now

    def evaluation_ended(self, now: float) -> None:
        if self._evaluating is not None:
            self._evaluations.append(now - self._evaluating)
            self._evaluating = None
        if self._since is not None:
            self._since = now

    def left(self, now: float, steps: int, evaluations: int) -> tuple[float, float] | None:
        """Seconds, from to, for as many more steps and evaluations; None while nothing is known."""
        if not self._steps or self._since is None:
            return None
        spent, others = now - self._since, 0.0
        if self._evaluations:
            others = evaluations * statistics.fmean(self._evaluations)
        if self._evaluating is not None:
            spent, others = 0.0, max(0.0, others - (now - self._evaluating))
        low, high = _quartiles(self._steps)
        return self._sum(steps, low, spent) + others, self._sum(steps, high, spent) + others

    @staticmethod
    def _sum(steps: int, each: float, spent: float) -> float:
        """Of the step under way only its rest; one that takes longer than usual will end at any moment."""
        return max(0.0, steps * each - min(spent, each))


def _quartiles(values: deque[float]) -> tuple[float, float]:
    if len(values) < 3:
        return min(values), max(values)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def in_words(left: tuple[float, float]) -> str:
    """`about 6 min`, `4–7 min`, `2 h 10 min – 3 h`: no more exact than it is known."""
    low, high = left
    if high < 60:
        return "under 1 min"
    if high - low <= ALIKE * high or _rough(low) == _rough(high):
        return f"about {_rough((low + high) / 2)}"
    if high < 3600:
        return f"{max(1, round(low / 60))}–{round(high / 60)} min"
    return f"{_rough(low)} – {_rough(high)}"


def _rough(seconds: float) -> str:
    """From an hour on to ten minutes."""
    return duration(seconds if seconds < 3600 else seconds // 600 * 600).removesuffix(" 00 min")
