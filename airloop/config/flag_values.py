"""The text of a flag, as a value of its key."""

from __future__ import annotations

import json
import tomllib
from typing import Any, Literal, get_origin

from airloop.config.keys import without_none
from airloop.config.orchestrator import not_toml


def parse_flag(text: str, annotation: Any = None) -> Any:
    """A flag's text as a value of the key's type; text that does not fit stays, for the schema to refuse."""
    kind = without_none(annotation)
    if kind is not annotation and text.lower() in ("none", "null"):
        return None
    if kind is str or get_origin(kind) is Literal:
        return text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        return _number(text, kind)
    return _guess(text)


def _number(text: str, kind: type) -> int | float | str:
    try:
        number = float(text)
        if kind is float:
            return number
        return int(text) if text.lstrip("+-").isdigit() else int(number) if number.is_integer() else text
    except (ValueError, OverflowError):
        return text


def _guess(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
        if list(parsed) == ["value"]:
            return parsed["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    if not_toml(parsed) is not None:
        raise LookupError("there is no null in TOML, so it could not be saved with the run.", "leave it out")
    return parsed
