"""A config as TOML. There is no writer in the standard library; this one writes what a Config can hold."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from airloop.config.schema import RunConfig

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def to_toml(config: RunConfig) -> str:
    """Every key with its value (None has no TOML form and is left out); loads back to an equal Config."""
    return "\n".join(_table_lines(config, "")).strip() + "\n"


def changes_toml(config: RunConfig) -> str:
    """Only the keys whose values are not their defaults; loads back to an equal Config."""
    return "\n".join(_table_lines(config, "", changed=True)).strip() + "\n"


def _table_lines(section: BaseModel, name: str, changed: bool = False) -> Iterator[str]:
    tables: list[tuple[str, BaseModel]] = []
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if changed and value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, BaseModel):
            tables.append((f"[{_join(name, key)}]", value))
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            tables += [(f"[[{_join(name, key)}]]", item) for item in value]
        elif value is not None:
            yield f"{key} = {toml_value(value)}"
    for header, table in tables:
        lines = list(_table_lines(table, header.strip("[]"), changed))
        if not changed or lines[:1] != [""]:  # of one that has only tables below it, those say its name
            yield from ("", header)
        yield from lines


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
        case str():
            return '"' + "".join(_escape(char) for char in value) + '"'
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case dict():
            pairs = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case _:
            raise TypeError(f"TOML has no form for {value!r}")


def _float(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].strip("+"), repr(value))


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char
