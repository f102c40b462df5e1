"""Writing files so that a reader, a crash or a full disk never meets half of one."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from airloop.errors import AirError

# A write that failed for want of space has filled the disk up to less than this.
LAST_BYTES = 1 << 18


def cache_directory() -> Path:
    """Where what can be made again is kept: converted models, prepared tables, fits."""
    if own := os.environ.get("AIR_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(6)}.tmp")
    try:
        with beside.open("xb") as file:
            write(file)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def append_line(path: Path, data: dict[str, Any]) -> None:
    """One JSON line. A crash can cut the last line only; read_lines leaves a cut line out."""
    with disk_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(data, ensure_ascii=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


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
