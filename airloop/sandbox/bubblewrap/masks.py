"""Directories of the host of which sandboxes see some entries only: of site-packages a few packages, of /usr/share what
programs need.

A cover and a bind for each entry do that everywhere. For every bind bwrap reads the table of all mounts again, so the
packages alone are half of what a sandbox takes to start. Where overlays can be made, one mount does the same: a layer
of whiteouts, which stand for files that are not there, lies over the directory.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from airloop.sandbox.interpreter import Interpreter

FEW = 3  # entries, for which binds are as quick
# Of /usr/share only what programs need to run: data sets may lie there, with their answers.
SHARE = (
    *("ca-certificates", "fontconfig", "fonts", "i18n", "locale", "mime"),
    *("misc", "perl", "perl5", "python3", "terminfo", "zoneinfo"),
)


class Masks:
    """`shown`: by directory, the names of its entries that sandboxes see. Covers are made in `folder`."""

    def __init__(self, folder: Path, shown: Mapping[str, Collection[str]]) -> None:
        self.folder = folder
        self.shown = {place: frozenset(names) for place, names in shown.items()}
        self._made: dict[str, tuple[frozenset[str], str]] = {}
        self._numbers = itertools.count()

    def covers(self) -> Iterator[tuple[str, str]]:
        """Each directory with the layer that lies over it; what has been put there since is covered too."""
        for place, names in self.shown.items():
            hidden = frozenset(os.listdir(place)) - names
            known = self._made.get(place)
            if known is None or known[0] != hidden:
                known = self._made[place] = (hidden, self._cover(hidden))
            yield place, known[1]

    def _cover(self, hidden: Collection[str]) -> str:
        folder = self.folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        for name in hidden:
            os.mknod(folder / name, stat.S_IFCHR, os.makedev(0, 0))
        return str(folder)


def to_be_masked(python: Interpreter, points: Collection[str]) -> dict[str, list[str]]:
    """Directories that are worth a mask, and what is seen of each. One that something is mounted in is none: an overlay
    would not show it."""
    found = {"/usr/share": [name for name in SHARE if os.path.exists(f"/usr/share/{name}")]}
    for path in python.shown:
        place, name = os.path.split(path)
        if place in python.hidden:
            found.setdefault(place, []).append(name)
    whole = [place for place in found if not any(p.startswith(f"{os.path.realpath(place)}/") for p in points)]
    return {place: found[place] for place in whole if len(found[place]) > FEW}
