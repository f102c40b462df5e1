"""What lies in the viewed directory: runs, evaluations and loose episodes, and the files of each.

Read-only and wary: links are not followed, only regular files are opened, and nothing outside the directory is
ever named by a request.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from airloop.errors import AirError
from airloop_view.air_agent import NAME as AIR_AGENT

Kind = Literal["run", "evaluation", "traj"]

DEPTH = 6  # levels below the viewed directory in which runs are looked for
MOST_DIRECTORIES = 20_000  # looked at in one search: a home directory must not keep a core busy
LARGEST_FILE = 64 << 20  # bytes of an episode's file; no real one comes near
SKIPPED = frozenset({"checkpoints", "node_modules", "__pycache__", "site-packages", "wandb", "tensorboard"})
STEP = re.compile(r"step_(\d{1,15})")
RUN_FILES = ("status.json", "metrics.jsonl", "trajectories", "evaluations")


@dataclass(frozen=True)
class Collection:
    """A run, an evaluation, or a directory of loose episodes. `id` is its path below the viewed directory."""

    id: str
    path: Path
    kind: Kind


@dataclass(frozen=True)
class Shelf:
    """A directory of episodes within a collection. `source` names it; `step` is that of a run, if it is one's."""

    collection: Collection
    source: str
    path: Path
    suffixes: tuple[str, ...] = (".json",)
    step: int | None = None

    def holds(self, file: str) -> bool:
        """Other JSON may lie beside loose episodes: of it, what air-agent wrote is known by its name."""
        loose = self.collection.kind == "traj" and self.source == "."
        return file.endswith(self.suffixes) or (loose and AIR_AGENT.fullmatch(file) is not None)

    def episode(self, file: str) -> str:
        """The episode's name within its collection. Names are unique within a step, not between a step and an
        evaluation, so those outside the steps carry their place with them."""
        stem = visible_name(file.rpartition(".")[0])
        plain = self.step is not None or self.source in ("episodes", ".")
        return stem if plain else f"{self.source}/{stem}"


class Folder:
    """The directory that was asked for, or the one of the single file that was."""

    def __init__(self, asked: Path) -> None:
        path = asked.expanduser()
        if not path.exists():
            raise AirError(
                f"There is nothing at {asked}.", "name a directory of runs, a run, or a .traj file: air view outputs"
            )
        path = path.resolve()
        self.only = None if path.is_dir() else path.name
        self.root = path if path.is_dir() else path.parent
        if self.only and not self.only.endswith((".traj", ".json")):
            raise AirError(
                f"{asked} is no recorded episode.", "name a directory, a .traj file of MLGym or a trajectory of air."
            )

    def name(self) -> str:
        return str(self.root / self.only if self.only else self.root)

    def collections(self) -> list[Collection]:
        if self.only:
            return [Collection(".", self.root, "traj")]
        return list(self._search())

    def _search(self) -> Iterator[Collection]:
        looked, level = 0, [self.root]
        named: Counter[str] = Counter()
        for _ in range(DEPTH + 1):
            below: list[Path] = []
            for path in level:
                looked += 1
                if looked > MOST_DIRECTORIES:
                    return
                names, directories = _look(path)
                kind = _kind(names, directories)
                if kind is not None:
                    id = self._id(path)
                    named[id] += 1  # names may differ only in bytes that are no text
                    yield Collection(id if named[id] == 1 else f"{id}~{named[id]}", path, kind)
                if kind in (None, "traj"):
                    below += [path / name for name in directories if name not in SKIPPED and name[0] != "."]
            level = below

    def _id(self, path: Path) -> str:
        return visible_name(str(path.relative_to(self.root)))

    def shelves(self, collection: Collection) -> list[Shelf]:
        path = collection.path
        if collection.kind == "evaluation":
            return [Shelf(collection, "episodes", path / "episodes")]
        if collection.kind == "traj":
            demonstrations = [Shelf(collection, "demonstrations", path / "demonstrations")]
            suffixes = (".traj", ".json") if self.only else (".traj",)
            return [Shelf(collection, ".", path, suffixes), *(demonstrations if not self.only else ())]
        steps = [
            Shelf(collection, visible_name(name), path / "trajectories" / name, step=_step(name))
            for name in _look(path / "trajectories")[1]
        ]
        evaluations = [
            Shelf(collection, f"evaluations/{visible_name(name)}", path / "evaluations" / name)
            for name in _look(path / "evaluations")[1]
        ]
        return [*evaluations, *steps]

    def files(self, shelf: Shelf) -> Iterator[os.DirEntry[str]]:
        """Regular files with an episode's ending; links and what is still being written are left out."""
        try:
            entries = os.scandir(shelf.path)
        except OSError:
            return
        with entries:
            for entry in entries:
                wanted = shelf.holds(entry.name) and not entry.name.startswith(".")
                if wanted and (self.only is None or entry.name == self.only) and _is_regular(entry):
                    yield entry

    def read(self, path: Path) -> bytes:
        """A regular file below the viewed directory; OSError for anything else."""
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise PermissionError(f"{path.name} has {size >> 20} MiB, more than an episode can have")
            return file.read()

    def open(self, path: Path) -> IO[bytes]:
        if path.resolve() != path or not path.is_relative_to(self.root):
            raise PermissionError(f"{path.name} leads out of the viewed directory")
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise PermissionError(f"{path.name} is not a regular file")
        return file


def visible_name(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 become signs that are."""
    return os.fsencode(name).decode("utf-8", "replace")


def _look(path: Path) -> tuple[set[str], list[str]]:
    """Names of the files and, sorted, of the directories in a directory; links are not among them."""
    files: set[str] = set()
    directories: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif _is_regular(entry):
                    files.add(entry.name)
    except OSError:
        pass
    return files, sorted(directories)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _kind(files: set[str], directories: list[str]) -> Kind | None:
    if "evaluation.json" in files:
        return "evaluation"
    here = files.union(directories)
    if "config.toml" in files and here.intersection(RUN_FILES):
        return "run"
    if "trajectories" in directories and {"metrics.jsonl", "status.json"} & files:
        return "run"  # damaged: it has lost its config
    if any(name.endswith(".traj") or AIR_AGENT.fullmatch(name) for name in files) or "demonstrations" in directories:
        return "traj"
    return None


def _step(name: str) -> int | None:
    found = STEP.fullmatch(name)
    return int(found[1]) if found else None
