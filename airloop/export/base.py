"""The base model under a run: where it is, what it is called, under which licence it was given."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from airloop.errors import AirError
from airloop.files import read_object

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)
_LICENCE = re.compile(r"^license:\s*['\"]?([\w.+-]+)['\"]?\s*$", re.MULTILINE)


@contextlib.contextmanager
def plain_base(loaded: Loaded) -> Iterator[Path]:
    """The base model's directory; a tiny one is made in memory and has none, so it gets one for a while."""
    if loaded.path is not None:
        yield loaded.path
        return
    from airloop.models.tiny import save_tiny

    with tempfile.TemporaryDirectory(prefix="air-export-") as directory:
        yield save_tiny(directory, loaded.name.removeprefix("tiny:"))


def base_name(loaded: Loaded) -> str:
    """What an adapter says it belongs to: the hub id, if the weights were the hub's, else the directory."""
    from airloop.models.sources import cache_directory

    if loaded.path is None:
        return loaded.name
    path = loaded.path.resolve()
    converted = cache_directory().resolve() in path.parents  # from a 4-bit file: not the hub's weights
    return str(path) if converted or Path(loaded.name).expanduser().exists() else loaded.name


def short_name(name: str) -> str:
    """By which people know it: of a hub id or a path the last part, without a file's ending."""
    return name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").replace(":", "-")


def hub_id(name: str) -> str | None:
    """The model's name, if it is one of the hub and no path of this machine."""
    from airloop.models.sources import HUB_ID

    local = Path(name).expanduser().exists() or name.lower().endswith(".gguf") or "/" not in name
    return None if local or not HUB_ID.fullmatch(name) else name


def saved_dtype(directory: Path, known: frozenset[str]) -> str:
    config = read_object(directory / "config.json")
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return dtype if dtype in known else "float32"


def licence_of(directory: Path | None) -> str | None:
    """As the base model's own card says it, or the GGUF file that it was made from; None where neither is here."""
    from airloop.models.gguf import Conversion
    from airloop.models.gguf_header import read_texts

    if directory is None:
        return None
    card = directory / "README.md"
    if card.is_file() and (front := _FRONT_MATTER.match(card.read_text(encoding="utf-8", errors="replace"))):
        found = _LICENCE.search(front[1])
        return found[1] if found else None
    made = Conversion(directory)
    if made.licence is None and made.source is not None and made.source.is_file():
        with contextlib.suppress(AirError):  # changed since: what it says now is of another model, or of none
            return read_texts(made.source).get("general.license")
    return made.licence
