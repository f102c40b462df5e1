"""Flags that are no keys: as other command lines call what is meant, or misspelt ones of the command itself."""

from __future__ import annotations

import shlex
from typing import Any

from airloop.config.foreign import Answer
from airloop.config.sources import SHORT_FLAGS
from airloop.text.command_flags import flags_of_command
from airloop.text.spelling import misspelt

_FILE = ("config", "config_file", "cfg", "conf")
_ENV = ("env", "environment", "env_id", "task")


def flag_meant(name: str, value: Any) -> Answer | None:
    said = "" if value is True else f" {shlex.quote(str(value))}"
    if name in _FILE:
        return Answer("files are named after @", instead=f"write @{said or ' FILE.toml'}", choice=True)
    if name in _ENV and isinstance(value, str):
        return Answer("no flag of that name; here it is the first environment's id", {"orchestrator.env.0.id": value})
    if near := misspelt(name, SHORT_FLAGS):
        return Answer(f"no flag of that name; the nearest is --{near}", {SHORT_FLAGS[near]: value})
    if near := misspelt(name, flags_of_command()):
        return Answer(f"no flag of that name; the nearest is --{near}", instead=f"write --{near}{said}", choice=True)
    return None


def short_flag(key: str) -> str:
    """The name that a key has on the command line."""
    return next((short for short, whole in SHORT_FLAGS.items() if whole == key), key)
