"""Locks on open files, so that two processes never write one thing. A lock ends with the process, however it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt  # its stubs know Windows only
except ImportError:
    msvcrt = None  # type: ignore[assignment]

# Windows locks bytes, and nobody else may read them: one far behind what any of these files holds.
PLACE = 1 << 30
# Windows has no wait without an end of its own.
AGAIN_S = 0.1


def take(handle: IO[Any], shared: bool = False) -> bool:
    """Takes the lock at once, or says that somebody else has it. `shared`: beside others that share it; Windows knows
    no such lock, so there it is one's own."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    if msvcrt is not None:
        return _take_byte(handle)
    return True  # neither: a system, such as WebAssembly's, that has no second process


def wait_for(handle: IO[Any]) -> None:
    """Takes the lock, however long somebody else has it."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    while not take(handle):
        time.sleep(AGAIN_S)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time is inside; the others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        wait_for(handle)
        yield


def take_within(file: IO[Any], seconds: float) -> bool:
    """As `take`, tried again for so long."""
    until = time.monotonic() + seconds
    while not take(file):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """The same for a directory that is there: the lock is on the directory itself, where the system can, and leaves no
    file."""
    if fcntl is None:
        with locked(directory / ".alone"):
            yield
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _take_byte(handle: IO[Any]) -> bool:
    lock: Any = msvcrt
    handle.seek(PLACE)
    try:
        lock.locking(handle.fileno(), lock.LK_NBLCK, 1)
    except OSError:
        return False
    finally:
        handle.seek(0)
    return True
