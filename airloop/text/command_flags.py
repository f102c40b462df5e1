"""The flags of the command that reads a config, beside the config's keys: only by them is a misspelt one known."""

from __future__ import annotations

from collections.abc import Iterable

_flags: list[str] = ["help"]


def note_flags(options: Iterable[str]) -> None:
    _flags[:] = [option.removeprefix("--") for option in options if option.startswith("--")]


def flags_of_command() -> list[str]:
    return list(_flags)
