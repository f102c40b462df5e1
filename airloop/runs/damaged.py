"""Reading what may be half-written, edited by hand, of another version or not ours at all: never raises, says what
could not be read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airloop import locks

LATEST = 253_402_300_799.0  # the last second that a calendar of four digits can name
# Bytes that are read of one file, of a file that is read at once, and of one line: those of a run are far below, and
# what is read takes up to thirty times as much memory.
LONGEST, LONGEST_WHOLE, LONGEST_LINE = 1 << 28, 1 << 24, 1 << 22


class Reader:
    """Reads a directory's files and collects what was wrong with them, one sentence each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def toml(self, name: str) -> dict[str, Any]:
        text = self.text(name)
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            self.problems.append(f"{name} is not valid TOML: {_short(error)}")
            return {}

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; empty where there is none."""
        text = self.text(name)
        if not text:
            return {}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.problems.append(f"{name} is not valid JSON: {_short(error)}")
            return {}
        if not isinstance(found, dict):
            self.problems.append(f"{name} holds {type(found).__name__}, not an object")
            return {}
        return found

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of a JSON-lines file. A last line without its end was cut by a crash and is left out, as it is
        when a run is resumed; other broken lines are counted."""
        found, broken = [], 0
        for line in self._whole_lines(name):
            if line.strip():
                try:
                    data = json.loads(line)
                except (ValueError, RecursionError):
                    data = None
                if isinstance(data, dict):
                    found.append(data)
                else:
                    broken += 1
        if broken:
            self.problems.append(f"{name}: {broken} {'line' if broken == 1 else 'lines'} cannot be read")
        return found

    def _whole_lines(self, name: str) -> Iterator[bytes]:
        """One after the other; of a line that is too long, nothing (which no JSON is)."""
        if not self._is_file(name):
            return
        try:
            with (self.path / name).open("rb") as file:
                while file.tell() < LONGEST and (line := file.readline(LONGEST_LINE)):
                    whole = line.endswith(b"\n")
                    while not line.endswith(b"\n"):
                        if not (line := file.readline(LONGEST_LINE)):
                            return
                    yield line if whole else b"too long"
                if file.tell() >= LONGEST:
                    self.problems.append(f"{name}: only its first {LONGEST >> 20} MiB are read")
        except OSError as error:
            self.problems.append(f"{name} cannot be read: {_short(error)}")

    def text(self, name: str) -> str:
        """Empty where there is no such file."""
        if not self._is_file(name):
            return ""
        try:
            with (self.path / name).open("rb") as file:
                content = file.read(LONGEST_WHOLE + 1)
            if len(content) > LONGEST_WHOLE:
                self.problems.append(f"{name} is larger than {LONGEST_WHOLE >> 20} MiB and is not read")
                return ""
            return content.decode("utf-8")
        except (OSError, ValueError) as error:
            self.problems.append(f"{name} cannot be read: {_short(error)}")
            return ""

    def _is_file(self, name: str) -> bool:
        """What is none (a directory, a pipe) is not opened, and said."""
        path = self.path / name
        try:
            if path.is_file():
                return True
            if path.exists():
                self.problems.append(f"{name} is not a file")
        except (OSError, ValueError) as error:
            self.problems.append(f"{name} cannot be read: {_short(error)}")
        return False


def _short(error: BaseException) -> str:
    """The first line of what the error says, without the path that the reader knows already."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def interval_of(row: Any) -> dict[str, float | None] | None:
    """A mean and the ends of its interval, which one of a single task has none of."""
    found = {name: number(table(row).get(name)) for name in ("mean", "low", "high")}
    return found if found["mean"] is not None else None


def whole(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def epoch(value: Any) -> float | None:
    """Seconds since 1970 that a calendar can show."""
    found = number(value)
    return found if found is not None and 0 <= found <= LATEST else None


def words(value: Any) -> str | None:
    """A text that can be written as UTF-8: JSON can hold halves of characters."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock. Asked for by a shared one that is let go at once; whoever takes the lock for
    itself meanwhile tries again (Run.lock)."""
    try:
        with lock.open("rb") as handle:
            return not locks.take(handle, shared=True)
    except OSError:
        return False


def directories(path: Path) -> Iterator[Path]:
    """Those in a directory, by name; none where it cannot be read. Links are not followed."""
    with contextlib.suppress(OSError), os.scandir(path) as found:  # which asks nothing more of files, however many
        yield from sorted(path / entry.name for entry in found if entry.is_dir(follow_symlinks=False))
