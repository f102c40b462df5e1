"""How a run's tasks are mixed: streams of tasks, one for each environment or for each family of its tasks, and what
share of a step each of them has.

The shares are fixed (`ratio`, `families`), or follow what the policy can do ([orchestrator.curriculum]): a family is
sampled in full while its success is within a band, where groups have both rewards and so something to teach, and the
less the further it is from that, down to a floor, by which it is noticed when that changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Stream = tuple[str, str]  # an environment and, where they are apart, a family of its tasks
Figures = Mapping[str, Mapping[str, float]]  # of one step, by family: a line of metrics has them as `task`


@dataclass(frozen=True)
class Curriculum:
    low: float
    high: float
    floor: float
    episodes: int  # a family's last ones, by which it is judged

    def weights(self, before: Sequence[Figures]) -> dict[str, float]:
        """Of each family that has been seen in these steps. Where no success is known, the reward is none either."""
        return {family: self.weight(success) for family, success in self._successes(before).items()}

    def weight(self, success: float) -> float:
        if success < self.low:
            return max(self.floor, success / self.low)
        if success > self.high:
            return max(self.floor, (1 - success) / (1 - self.high))
        return 1.0

    def _successes(self, before: Sequence[Figures]) -> dict[str, float]:
        found: dict[str, tuple[float, float]] = {}  # the sum of successes, and of how many
        for figures in reversed(before):
            for family, row in figures.items():
                total, count = found.get(family, (0.0, 0.0))
                if "success" in row and count < self.episodes:
                    found[family] = total + row["success"] * row["episodes"], count + row["episodes"]
        return {family: total / count for family, (total, count) in found.items()}


@dataclass
class Mixture:
    """Whose turn it is, task by task: of the stream that has had the least of its share."""

    shares: Mapping[Stream, float]
    families: Mapping[Stream, str]  # what each stream's results are counted under
    curriculum: Curriculum | None = None
    _turns: list[tuple[Stream, int]] = field(default_factory=list)
    _credits: dict[Stream, float] = field(default_factory=dict)
    _taken: dict[Stream, int] = field(default_factory=dict)

    def turns(self, step: int, n: int, before: Sequence[Figures]) -> list[tuple[Stream, int]]:
        """The n turns of a step: a stream, and its how many-th task. They follow from the steps before, so a resumed
        run that knows these has the same."""
        while len(self._turns) < (step + 1) * n:
            now = len(self._turns) // n
            self._turns.append(self._next(self.weights(before[:now]), self._credits, self._taken))
        return self._turns[step * n : (step + 1) * n]

    def fresh(self, count: int, before: Sequence[Figures]) -> list[tuple[Stream, int]]:
        """So many turns of a step's own."""
        weights, credits, taken = self.weights(before), dict[Stream, float](), dict[Stream, int]()
        return [self._next(weights, credits, taken) for _ in range(count)]

    def weights(self, before: Sequence[Figures]) -> dict[Stream, float]:
        """Shares of one, after these steps."""
        known = self.curriculum.weights(before) if self.curriculum else {}
        found = {stream: share * known.get(self.families[stream], 1.0) for stream, share in self.shares.items()}
        total = sum(found.values())
        return {stream: weight / total for stream, weight in found.items()}

    def _next(
        self, weights: Mapping[Stream, float], credits: dict[Stream, float], taken: dict[Stream, int]
    ) -> tuple[Stream, int]:
        for stream, weight in weights.items():
            credits[stream] = credits.get(stream, 0.0) + weight
        chosen = max(weights, key=lambda stream: round(credits[stream], 9))
        credits[chosen] -= 1
        number = taken.get(chosen, 0)
        taken[chosen] = number + 1
        return chosen, number
