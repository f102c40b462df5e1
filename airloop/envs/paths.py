"""Arguments of an environment that name files. They are marked, so that what a TOML says is relative to that TOML:

    dataset: Annotated[str, Anchored(anchored_source)] = Field(…)

An argument that is not marked reaches the environment as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from airloop import own_code

Anchor = Callable[[str, Sequence[Path]], str]


@dataclass(frozen=True)
class Anchored:
    """The mark: how a text, or each text of a list or of a table, becomes the same place seen from anywhere."""

    anchor: Anchor


def existing(value: str, folders: Sequence[Path]) -> str:
    """The path in the first of the folders that has it. What is in none may be another kind of name, and stays."""
    found = (folder.absolute() / Path(value).expanduser() for folder in folders)
    return next((str(path) for path in found if path.exists()), value)


def code(value: str, folders: Sequence[Path]) -> str:
    """Of "./rewards.py:correct"."""
    return own_code.anchored(value, folders) if own_code.is_file_id(value) else value


def anchored_args(args: Mapping[str, Any], model: type[BaseModel], folders: Sequence[Path]) -> dict[str, Any]:
    """The arguments with the marked ones of them seen from anywhere."""
    found = dict(args)
    for name, mark in marked(model).items():
        if name in found:
            found[name] = _anchored(found[name], mark, folders)
    return found


def _anchored(value: Any, mark: Anchored, folders: Sequence[Path]) -> Any:
    return each_text(value, lambda text: mark.anchor(text, folders))


def marked(model: type[BaseModel]) -> dict[str, Anchored]:
    """The arguments that name files, and how."""
    fields = model.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Anchored)}


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A text changed, or each text of a list or of a table."""
    if isinstance(value, list):
        return [each_text(part, change) for part in value]
    if isinstance(value, dict):
        return {key: each_text(part, change) for key, part in value.items()}
    return change(value) if isinstance(value, str) and value else value
