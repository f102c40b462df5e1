"""What the system refuses about a file, as a sentence that says which and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from airloop.errors import AirError

ELSEWHERE = "name a place that can be written to."
SHOWN = 80  # characters of a name that is too long
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Around what opens a file to read it."""
    try:
        yield
    except OSError as error:
        raise refusal(error, "read", str(path)) from error


def refusal(error: OSError, done: str = "opened", path: str = "") -> AirError:
    """`done`: what could not be done to the file; `path` where the error names none."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return AirError("The folder that this was started in is not there any more.", "cd to one that is.")
    name = path or (error.filename if isinstance(error.filename, str) else os.fsdecode(error.filename or b"a file"))
    said = error.strerror or type(error).__name__
    problem = f"{name} cannot be {done}: {said}."
    if error.errno in FULL:
        return AirError(f"The disk is full: {name} could not be written.", "free space on it, then repeat the command.")
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return AirError(problem, _permitted(Path(name), "w" if done == "written" else "r"))
        case errno.EROFS:
            return AirError(f"{name} cannot be written: its file system is read-only.", ELSEWHERE)
        case errno.EISDIR:
            return AirError(f"{name} is a folder, not a file.", "name a file in it.")
        case errno.ENOTDIR | errno.EEXIST:
            return AirError(
                f"{name} cannot be {done}: a part of it is a file, not a folder.", "name a place in a folder."
            )
        case errno.ENAMETOOLONG:
            return AirError(
                f"{name[:SHOWN]}… is too long for a name of a file ({len(name)} characters).", "shorten it."
            )
        case errno.ENOENT:
            return AirError(problem, ELSEWHERE if done == "written" else "check the name.")
    return AirError(problem, "see to what the system says of it, or name another place.")


def _permitted(path: Path, wanted: str) -> str:
    """The command that allows it; the first folder on the way that may not be entered comes first."""
    path = path.absolute()
    with contextlib.suppress(OSError):
        for folder in reversed(path.parents):
            if folder.is_dir() and not _may(folder, os.X_OK):
                return _allow(folder, "x")
        if not path.exists():
            return f"{_allow(path.parent, 'w')}; or name another place."
        if path.is_dir():
            return f"{_allow(path, 'rwx')}; or name another place."
        if wanted == "r" and _may(path, os.R_OK) and not _may(path, os.W_OK):
            wanted = "w"
    return _allow(path, wanted)


def _may(path: Path, mode: int) -> bool:
    """As this process is, and not as who started it."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _allow(path: Path, wanted: str) -> str:
    with contextlib.suppress(OSError):
        if hasattr(os, "getuid") and os.getuid() not in (0, path.stat().st_uid):
            return f"it belongs to somebody else: ask them for it, or name another place than {path}"
    return f"chmod u+{wanted} {shlex.quote(str(path))}"


def check_place(path: Path, what: str) -> None:
    """Whether a folder is there that can be written to, or can be made; what was made to find out is taken away."""
    path = path.expanduser().absolute()
    made: list[Path] = []
    try:
        try:
            for folder in (*reversed(path.parents), path):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
            if not path.is_dir():
                raise AirError(f"{what}: {path} is a file, not a folder.", "name a folder.")
            if not _may(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        finally:
            for folder in reversed(made):
                with contextlib.suppress(OSError):  # somebody has put something into it meanwhile
                    folder.rmdir()
    except OSError as error:
        told = refusal(error, "written")
        raise AirError(f"{what}: {told.problem}", told.fix) from error
