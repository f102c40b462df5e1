"""A run's directory appears whole: it is filled under a hidden name and then renamed. A process that is killed
meanwhile leaves nothing that could be taken for a run, and takes no number."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airloop.runs.damaged import directories, is_held, modified
from airloop.runs.entries import locked
from airloop.runs.lineage import label

NAME = re.compile(r"exp(\d+)\.(\d+)-")
HIDDEN = ".new-"
# Filling takes milliseconds. What is older, and held by nobody, was left by a process that was killed.
LEFT_S = 3600.0


class NewDirectory:
    """`hidden`: where it is filled. `path`: where it will be, or is, once the block has ended."""

    def __init__(self, hidden: Path, path: Path) -> None:
        self.hidden, self.path = hidden, path


@contextmanager
def new_directory(root: Path, major: int, task: str) -> Iterator[NewDirectory]:
    """With the next free number. Alone in `root` until it has its name: runs of two tasks differ in their names, so
    that both could get one number, by which people call them."""
    with locked(root):
        _remove_left(root)
        hidden = root / f"{HIDDEN}{os.getpid()}-{secrets.token_hex(4)}"
        hidden.mkdir()
        made = NewDirectory(hidden, _next_free(root, major, task))
        try:
            yield made
            while not _moved(made):  # made from another machine, whose lock is not seen here
                made.path = _next_free(root, major, task)
        finally:
            shutil.rmtree(made.hidden, ignore_errors=True)


def _moved(made: NewDirectory) -> bool:
    try:
        os.rename(made.hidden, made.path)
    except OSError:
        if os.path.lexists(made.path):
            return False
        raise
    return True


def _next_free(root: Path, major: int, task: str) -> Path:
    found = [m for m in map(NAME.match, os.listdir(root)) if m and int(m[1]) == major]
    minor = max((int(m[2]) for m in found), default=-1) + 1
    return root / f"exp{major}.{minor}-{label(task)}-{time.strftime('%m%d')}"


def _remove_left(root: Path) -> None:
    for path in directories(root):
        changed = modified(path) if path.name.startswith(HIDDEN) else None
        if changed is not None and time.time() - changed > LEFT_S and not is_held(path / ".lock"):
            shutil.rmtree(path, ignore_errors=True)
