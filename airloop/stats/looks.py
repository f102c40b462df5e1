"""Seeds that are added because of what the first ones showed: who looks often enough finds something.

Every set of seeds whose verdict was shown is written down. A verdict on further seeds is then given at a stricter
level, at which it is wrong half as often as the one before: 2.5 % in the one direction that a hypothesis predicts, then
1.25 %, 0.6 %, … – all looks together support a claim that is not true less than once in twenty.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from airloop.files import append_line, read_lines
from airloop.stats.intervals import LEVEL


def level_after(looks: int) -> float:
    """Of the next verdict, after so many on other seeds."""
    return 1 - (1 - LEVEL) / 2**looks


def percent(level: float) -> str:
    return f"{100 * level:.4g} %"


class Looks:
    """What was seen of a set of runs, in a file that is only added to."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def seen(self) -> list[frozenset[int]]:
        """The sets of seeds, each once, in the order in which they were first seen."""
        return list(dict.fromkeys(frozenset(line["seeds"]) for line in read_lines(self._file)))

    def before(self, seeds: Collection[int]) -> list[frozenset[int]]:
        """Those that were seen before this one was, if it ever was."""
        seen, own = self.seen(), frozenset(seeds)
        return seen[: seen.index(own)] if own in seen else seen

    def note(self, seeds: Collection[int]) -> None:
        if frozenset(seeds) not in self.seen():
            append_line(self._file, {"time": time.time(), "seeds": sorted(seeds)})
