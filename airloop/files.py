"""Writing files so that a reader, a crash or a full disk never meets half of one."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from airloop.errors import AirError
from airloop.text.keys import without_keys_in

log = logging.getLogger(__name__)

# A write that failed for want of space has filled the disk up to less than this.
LAST_BYTES = 1 << 18


def cache_directory() -> Path:
    """Where what can be made again is kept: converted models, prepared tables, fits. AIR_CACHE names another place;
    without it, a home that cannot be written to is replaced by a folder among the temporary ones."""
    if own := os.environ.get("AIR_CACHE"):
        place = Path(own).expanduser()
        if not _may_be_written(place):
            raise AirError(f"AIR_CACHE = {own} cannot be written to.", "set AIR_CACHE to a folder that can.")
        return place
    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"
    return place if _may_be_written(place) else _cache_elsewhere(place)


def _may_be_written(place: Path) -> bool:
    """Whether it is a folder that files can be put into, or one can be made there."""
    there = next((path for path in (place, *place.parents) if path.exists()), place)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _cache_elsewhere(place: Path) -> Path:
    """For this process and those that it starts; of this user alone, whoever else knows the name."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    other = Path(tempfile.gettempdir()) / f"air-cache-{user}"
    fix = "set AIR_CACHE to a folder that can be written to."
    try:
        other.mkdir(mode=0o700, exist_ok=True)
        foreign = hasattr(os, "getuid") and other.lstat().st_uid != user
    except OSError as error:
        raise AirError(f"Neither {place} nor {other} can be written to: {error}.", fix) from None
    if foreign or other.is_symlink():
        raise AirError(f"{place} cannot be written to, and {other} belongs to somebody else.", fix)
    log.warning("%s cannot be written to: %s is used. It may be gone tomorrow; AIR_CACHE names another.", place, other)
    os.environ["AIR_CACHE"] = str(other)
    return other


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if _says_disk_full(error):
            raise AirError(
                f"The disk is full: {path} could not be written. Everything written before is whole.",
                f"free space on {path.parent}, then go on with `air train --resume RUN`.",
            ) from error
        raise


def _says_disk_full(error: Exception) -> bool:
    """safetensors raises an error of its own around the system's sentence."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "No space left" in str(error)


def write_text(path: Path, text: str) -> None:
    with disk_errors(path):
        write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """All or nothing, whoever else writes the same file: written beside its place, then renamed into it."""
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(6)}.tmp")
    try:
        file = beside.open("xb")
    except FileNotFoundError:  # seldom: thousands of files are written into a directory that is there
        path.parent.mkdir(parents=True, exist_ok=True)
        file = beside.open("xb")
    try:
        with file:
            write(file)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(without_keys_in(data), ensure_ascii=False, allow_nan=False) + "\n")


CHUNK = 64 << 10  # bytes that are read at once, from the end of a file


def append_line(path: Path, data: dict[str, Any]) -> None:
    """One JSON line. A crash can cut the last line only; read_lines leaves a cut line out, and the next one takes its
    place: behind it, both would be lost."""
    with disk_errors(path), path.open("a+b") as file:
        _drop_cut_line(file)
        file.write((json.dumps(without_keys_in(data), ensure_ascii=False) + "\n").encode())


def _drop_cut_line(file: IO[bytes]) -> None:
    end = whole = file.seek(0, os.SEEK_END)
    while whole:
        start = max(0, whole - CHUNK)
        file.seek(start)
        last = file.read(whole - start).rfind(b"\n")
        whole = start + last + 1 if last >= 0 else start
        if last >= 0:
            break
    if whole < end:
        file.truncate(whole)


class GrowingLines:
    """Of a file that others append lines to, those that `wanted` takes. Each line is read once."""

    def __init__(self, path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
        self._path, self._wanted = path, wanted
        self._found: list[dict[str, Any]] = []
        self._file, self._end = 0, 0

    def read(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_ino != self._file or facts.st_size < self._end:  # written anew
                self._found, self._file, self._end = [], facts.st_ino, 0
            file.seek(self._end)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._end += len(new)
        lines = (_object(line, str(self._path)) for line in new.decode("utf-8").split("\n") if line)
        self._found += [line for line in lines if self._wanted(line)]
        return list(self._found)


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines[:-1], 1) if line]


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return _object(path.read_text(encoding="utf-8"), str(path))


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise AirError(f"{where} is not JSON: {error}.", "restore it from a copy, or move it away.") from None
    if not isinstance(found, dict):
        raise AirError(f"{where} holds no JSON object.", "restore it from a copy, or move it away.")
    return found


def parse_json(text: str | bytes) -> Any:
    """json.loads, for texts of strangers: brackets without end are a ValueError like any other mistake."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_deeper(value: Any, levels: int) -> bool:
    """Whether dicts and lists lie in one another more than so many times. What works through them by recursion would
    fail at some depth, which depends on who called it."""
    level = [value]
    for _ in range(levels + 1):
        level = [v for v in level if isinstance(v, dict | list)]
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v)]
    return bool(level)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory that appears complete or not at all, replacing what is there."""
    beside = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    with disk_errors(path):
        beside.mkdir(parents=True)
        try:
            yield beside
        except BaseException as error:
            # torch.save says "iostream error" or "unexpected pos": what is left on the disk tells what it means.
            full = isinstance(error, RuntimeError) and shutil.disk_usage(beside).free < LAST_BYTES
            shutil.rmtree(beside, ignore_errors=True)
            if full:
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise
        for file in beside.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        old = path.with_name(f".{path.name}.old")
        if path.exists():
            os.replace(path, old)
        os.replace(beside, path)
        shutil.rmtree(old, ignore_errors=True)
