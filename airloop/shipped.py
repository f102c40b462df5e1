"""Configs that come with the package and go by name: `quickstart`, `mlgym/small`, and hypotheses as `lab/mask`."""

from __future__ import annotations

import difflib
import re
from pathlib import Path, PurePath

from airloop.errors import AirError

FOLDER = Path(__file__).resolve().parent / "configs"
HYPOTHESES = FOLDER / "lab"


def names(hypotheses: bool = False) -> list[str]:
    """Of the configs of `air train`; with `hypotheses` also what `air lab run` takes."""
    found = sorted(FOLDER.rglob("*.toml"), key=lambda path: (len(path.relative_to(FOLDER).parts), path))
    return [_name(path) for path in found if hypotheses or path.parent != HYPOTHESES]


def shipped(name: str, hypotheses: bool = False) -> Path:
    """The file of that name; AirError with the nearest if there is none."""
    if name in names(hypotheses):
        return FOLDER / f"{name}.toml"
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
    """The shipped config that a path means: `configs/mlgym/small.toml`, where they were once, is `mlgym/small`."""
    parts = PurePath(path.replace("\\", "/")).with_suffix("").parts
    known = names()
    tails = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((tail for tail in tails if tail in known), "")


def about(name: str) -> str:
    """The first sentence of a file's opening comment."""
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    whole = " ".join(lines)
    sentence = re.match(r".*?(?<!\bDr)\.(?=\s)", whole)
    return sentence[0] if sentence else whole


def _name(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()
