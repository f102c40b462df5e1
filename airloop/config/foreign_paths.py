"""Other trainers' keys by their whole path: the nearest entry of their tables."""

from __future__ import annotations

from airloop.config.foreign import Alias
from airloop.config.foreign_prime import PRIME
from airloop.config.foreign_verl import VERL
from airloop.config.sources import KeyPath

_ALL = {**VERL, **PRIME}


def foreign_at(path: KeyPath) -> Alias | None:
    """What is known of another trainer's key, by its whole path: the nearest entry."""
    name = ".".join("*" if isinstance(part, int) else part for part in path)
    if name in _ALL:
        return _ALL[name]
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if alias := _ALL.get(".".join([*parts[:end], "**"])):
            return alias
    return None


def is_prime(path: KeyPath) -> bool:
    name = ".".join("*" if isinstance(part, int) else part for part in path)
    parts = name.split(".")
    return name in PRIME or any(".".join([*parts[:end], "**"]) in PRIME for end in range(len(parts), 0, -1))


def is_one(path: KeyPath) -> bool:
    """Whether the tables in a table are answered with it, and not each by itself."""
    return ".".join(map(str, path)) in _ALL
