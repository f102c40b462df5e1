"""Names of runs, and which run another one follows."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.runs.damaged import Reader, directories, items, table, words
from airloop.runs.entries import read_entries

_NAME = re.compile(r"exp(\d{1,9})\.(\d{1,9})-(.+)-(\d{4})")
NAMED = 5  # runs that a refusal lists
LONGEST = 120  # signs of a task in a name: a directory's may have 255, and files beside it are named after it


@dataclass(frozen=True)
class RunName:
    """exp{major}.{minor}-{task}-{MMDD}"""

    major: int
    minor: int
    task: str
    day: str

    @property
    def number(self) -> tuple[int, int]:
        return self.major, self.minor


def parse_name(name: str) -> RunName | None:
    match = _NAME.fullmatch(name)
    return RunName(int(match[1]), int(match[2]), match[3], match[4]) if match else None


def label(task: str) -> str:
    """A task as it stands in a run's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", task)[:LONGEST].strip("-") or "run"


def env_names(config: dict[str, Any]) -> list[str]:
    """Of a resolved config, as read from TOML. Joined, they are the run's task."""
    environments = [table(e) for e in items(table(config.get("orchestrator")).get("env"))]
    return [name for e in environments if (name := words(e.get("name") or e.get("id")))]


def find_parent(path: Path) -> Path | None:
    """The run that this one follows: as noted when it was made, or in its config, or by its name. The directory may
    be gone."""
    reader = Reader(path)
    noted = read_entries(reader).parent
    if noted is None:
        noted = words(table(reader.toml("config.toml").get("logbook")).get("parent")) if _has_config(path) else None
    if noted is None:
        return run_before(path)
    return _place(noted, path.parent) if noted else None


def _has_config(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _place(noted: str, root: Path) -> Path:
    return Path(os.path.normpath(root / Path(noted).expanduser()))


def run_before(path: Path) -> Path | None:
    """The latest earlier run of the same task beside it, those left out that are only planned."""
    own = parse_name(path.name)
    if own is None:
        return None
    for number, name in reversed(_names(path.parent, _changed(path.parent)).get(own.task, ())):
        other = path.parent / name
        if number < own.number and _has_config(other) and not _is_planned(other):
            return other
    return None


def _is_planned(path: Path) -> bool:
    return Reader(path).json("status.json").get("status") == "planned"


@functools.lru_cache(maxsize=64)
def _names(root: Path, changed: int) -> dict[str, list[tuple[tuple[int, int], str]]]:
    """Of each task the runs in a directory, in the order of their numbers. Kept until the directory changes."""
    found: dict[str, list[tuple[tuple[int, int], str]]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            if (parsed := parse_name(name)) is not None:
                found.setdefault(parsed.task, []).append((parsed.number, name))
    return {task: sorted(runs) for task, runs in found.items()}


def _changed(root: Path) -> int:
    try:
        return root.stat().st_mtime_ns
    except OSError:
        return 0


def check_parent(parent: str | None, output_dir: Path) -> None:
    """AirError if a run's parent is given and is no run."""
    if parent is not None:
        given_parent(parent, output_dir.expanduser().resolve())


def given_parent(parent: str, root: Path) -> Path:
    """`[logbook] parent`: a run's name in the output directory, or a path. AirError if it is no run."""
    candidates = [root / parent, Path(parent).expanduser()]
    for path in candidates:
        if _has_config(path):
            return Path(os.path.abspath(path))
    names = [p.name for p in directories(root) if parse_name(p.name)]
    close = difflib.get_close_matches(Path(parent).name, names, NAMED, 0.6) or names[-NAMED:]
    known = f'name one that is there: parent = "{close[0]}"' if close else f"{root} has no run yet"
    more = f" (or {', '.join(close[1:])})" if close[1:] else ""
    raise AirError(
        f"[logbook] parent = {parent!r} is no run: neither {root / parent} nor {candidates[1]} has a config.toml.",
        f"{known}{more}; left out, the parent is the latest earlier run of the same task.",
    )


def as_noted(parent: Path, root: Path) -> str:
    """A parent as a run in `root` notes it: by name where they lie side by side, else by the way there, so that a
    folder of runs can be moved."""
    return os.path.relpath(parent, root)
