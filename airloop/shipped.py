"""Configs that come with the package and go by name: `quickstart`, `gsm8k/cpu`, and hypotheses as `lab/mask`.

A package adds its own by an entry point in the group "airloop.configs": its name, in whose folder `configs` they lie.
"""

from __future__ import annotations

import difflib
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePath

from airloop.errors import AirError
from airloop.plugins import plugins

OWN = "airloop"
LAB = "lab/"  # begins the names of hypotheses


def names(hypotheses: bool = False) -> list[str]:
    """Of the configs of `air train`; with `hypotheses` also what `air lab run` takes."""
    found = sorted(_files(), key=lambda name: (name.count("/"), name))
    return [name for name in found if hypotheses or not name.startswith(LAB)]


def shipped(name: str, hypotheses: bool = False) -> Path:
    """The file of that name; AirError with the nearest if there is none."""
    if name in names(hypotheses):
        return _files()[name]
    close = nearest(name, hypotheses)
    raise AirError(
        f"No config that comes with air is called {name!r}.",
        f"did you mean {close}?" if close else "`air configs list` shows those there are.",
    )


def nearest(name: str, hypotheses: bool = False) -> str:
    """The name that is meant by a misspelled one, or by only its last part; empty if none is near."""
    known = {label: whole for whole in reversed(names(hypotheses)) for label in (whole, whole.rpartition("/")[2])}
    close = difflib.get_close_matches(name, known, 1, 0.6)
    return known[close[0]] if close else ""


def name_of(path: str) -> str:
    """The shipped config that a name or a path means: `configs/gsm8k/cpu.toml`, where they were once, is
    `gsm8k/cpu`."""
    known = names()
    if path in known:
        return path
    pure = PurePath(path.replace("\\", "/"))
    parts = pure.with_suffix("").parts if pure.name else ()
    tails = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((tail for tail in tails if tail in known), "")


def about(name: str) -> str:
    """The first sentence of a file's opening comment."""
    text = shipped(name, hypotheses=True).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    whole = " ".join(lines)
    sentence = re.match(r".*?(?<!\bDr)\.(?=\s)", whole)
    return sentence[0] if sentence else whole


def _files() -> dict[str, Path]:
    """By name."""
    return dict(_found(packages(), tuple(sys.path)))


def packages() -> tuple[str, ...]:
    """This one, and those that add configs."""
    return OWN, *(point.value for _, point in sorted(plugins("configs").items()))


@cache
def _found(packages: tuple[str, ...], _: tuple[str, ...]) -> dict[str, Path]:
    """No other package's takes the place of one of ours. Folders are gone through once for a path of imports."""
    found: dict[str, Path] = {}
    for package in packages:
        for folder in (place / "configs" for place in folder_of(package)):
            here = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.toml")}
            found = here | found
    return found


def folder_of(package: str) -> list[Path]:
    """Where a package lies, in several places if it is made of several; none where it is not there. Nothing of it is
    imported."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(place).resolve() for place in places or ()]
