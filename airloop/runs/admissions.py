"""stream.jsonl of a run that samples and trains side by side: which groups were admitted, and what became of them.

    {"admitted": 17, "version": 3}                     before anything of the group is sampled
    {"lost": 14}                                       it has ended, with nothing in it to train on
    {"trained": [12, 13, 15], "dropped": [14], "step": 4}
    {"refused": [16, 17], "dropped": [], "step": 5}    the update could not be made, or must not count

A group's finished episodes are files, as in every run. Killed at any moment, the run goes on from its last checkpoint:
what was trained before it is in the weights and never trained again; every other group that was admitted is trained in
its turn, with the episodes that it has, and with those sampled anew that were under way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airloop.files import append_line, read_lines, write_text

NAME = "stream.jsonl"


@dataclass(frozen=True)
class UpdateGroups:
    """The groups that one update took: `dropped` of them had nothing to train on."""

    step: int
    numbers: tuple[int, ...]
    dropped: frozenset[int]
    refused: bool


@dataclass
class ReplayState:
    """What a run did before it was resumed."""

    versions: dict[int, int] = field(default_factory=dict)  # of the groups that were admitted
    taken: list[UpdateGroups] = field(default_factory=list)  # in the checkpoint, or refused
    refused: set[tuple[int, ...]] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # groups whose place has been given to others

    @property
    def spent(self) -> dict[int, UpdateGroups]:
        """Groups that are not trained any more, by number."""
        return {number: taken for taken in self.taken for number in taken.numbers}

    def before(self, step: int) -> list[UpdateGroups]:
        """What went into the first `step` updates, and what was refused on the way, in its order."""
        return sorted((taken for taken in self.taken if taken.step < step), key=lambda taken: taken.step)

    @property
    def open(self) -> list[tuple[int, int]]:
        """Numbers and versions of the groups whose turn is still to come."""
        spent = self.spent
        return [(number, version) for number, version in sorted(self.versions.items()) if number not in spent]


class Admissions:
    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.replay = ReplayState()

    def admitted(self, number: int, version: int) -> None:
        if self.replay.versions.get(number) != version:  # else its line is there
            append_line(self._path, {"admitted": number, "version": version})

    def lost(self, number: int) -> None:
        if number not in self.replay.lost:
            append_line(self._path, {"lost": number})

    def taken(self, step: int, kept: Sequence[int], dropped: Sequence[int], *, refused: bool = False) -> None:
        what = "refused" if refused else "trained"
        append_line(self._path, {what: list(kept), "dropped": list(dropped), "step": step})

    def resume(self, step: int) -> ReplayState:
        """Go on from a checkpoint that holds the first `step` updates. Those after it are made again."""
        lines = [line for line in read_lines(self._path) if "trained" not in line or line["step"] < step]
        replay = self.replay = ReplayState()
        for line in lines:
            if "admitted" in line:
                replay.versions[line["admitted"]] = line["version"]
                continue
            if "lost" in line:
                replay.lost.add(line["lost"])
                continue
            refused = "refused" in line
            kept = line["refused"] if refused else line["trained"]
            numbers = tuple(sorted([*kept, *line["dropped"]]))
            replay.taken.append(UpdateGroups(line["step"], numbers, frozenset(line["dropped"]), refused))
            if refused:  # whatever its policy sampled was set aside with it
                replay.refused.add(numbers)
                replay.versions = {n: min(version, line["step"]) for n, version in replay.versions.items()}
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
        return replay
