"""Which files of this machine a checkout may name: its own, and those below directories that the user has named.

What a task names is copied into the agent's sandbox or shown there, and a task file is whatever its author wrote: the
keys of the machine's owner, a parent directory, or a link to either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from airloop.sandbox.bubblewrap.command import is_shown
from airloop_envs.mlgym.fields import Fields

ROOT_VARIABLE = "AIR_MLGYM_ROOT"
DATA_VARIABLE = "AIR_MLGYM_DATA"
# Ours, which an installer may have put there as links.
BUILTIN = Path(__file__).parent / "builtin"


def within(root: Path, name: str, key: str, fields: Fields) -> Path | None:
    """The path that a task's key names, or None and a problem where it, or a link below it, is not the checkout's."""
    path = Path(os.path.normpath(root / name))
    outside = next(strays(root, path), None)
    if outside is None:
        return path
    link = "" if outside == path else f" holds the link {outside.relative_to(path).as_posix()}, which"
    fields.problems.append(
        f"{fields.file}: {key} names {name!r}, which{link} is {os.path.realpath(outside)}, none of the files of the "
        f"checkout {root}: agents would see it. Copy what they need into the checkout, or name its directory in "
        f"{DATA_VARIABLE}."
    )
    return None


def strays(root: Path, path: Path) -> Iterator[Path]:
    """The path, or links directly or further below it, that are neither in the checkout nor in a directory for data.
    Links to directories are not followed: what they hold is shown as it is, and links in there lead nowhere."""
    if root == BUILTIN.resolve():
        return
    if not _is_allowed(root, path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        for link in (Path(folder, name) for name in (*folders, *files)):
            if link.is_symlink() and not _is_allowed(root, link):
                yield link


def _is_allowed(root: Path, path: Path) -> bool:
    """Not the checkout as a whole, nor its history, where a password may be; git-annex keeps data there."""
    real = Path(os.path.realpath(path))
    own = real.is_relative_to(root) and real != root and not real.is_relative_to(root / ".git")
    return own or any(real.is_relative_to(place) for place in (root / ".git" / "annex", *data_roots()))


def data_roots() -> list[Path]:
    """Directories outside a checkout that its tasks may name, or link to, as data."""
    said = os.environ.get(DATA_VARIABLE, "").split(os.pathsep)
    return [Path(place).expanduser().resolve() for place in said if place.strip()]


def in_sight(place: Path) -> bool:
    """Whether agents can read a place of this machine although nobody gave it to them; ours is covered by itself."""
    real = place.resolve()
    return not real.is_relative_to(BUILTIN.resolve()) and is_shown(str(real))
