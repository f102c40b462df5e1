"""Paths in a config are made absolute as it is read: what stands in a file is relative to the file's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airloop.config.env_aliases import env_synonyms
from airloop.envs.base import find_args
from airloop.envs.files import VERIFIERS
from airloop.envs.paths import anchored_args, existing
from airloop.own_code import anchored, is_file_id

_PATH_KEYS = (("model", "chat_template"), ("model", "adapter"))
# a path only if it starts with a dot
_PATH_OR_NAME_KEYS = (("model", "name"), ("warmstart", "source"), ("logbook", "parent"))


def anchor_paths(tree: dict[str, Any], folders: list[Path], *, environments: bool = True) -> None:
    """Make paths absolute, so that nothing depends on where the resolved config is loaded from (A8). Which arguments
    of an environment are paths it says itself, and to ask it is to import it: not without `environments`."""
    for section, key in (*_PATH_KEYS, *_PATH_OR_NAME_KEYS):
        table = tree.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(value, str) or not value:
            continue
        if (section, key) in _PATH_KEYS or value.startswith((".", "~")):
            table[key] = existing(value, folders)
    for table, key in _own_code(tree):
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = _anchored_code(table[key], folders)
    for entry in _entries(tree) if environments else ():
        env_id, args = entry.get("id"), entry.get("args")
        if isinstance(env_id, str) and isinstance(args, dict) and args:
            model = find_args(env_synonyms().get(env_id, env_id))
            entry["args"] = anchored_args(args, model, folders) if model else args


def _anchored_code(value: str, folders: list[Path]) -> str:
    named = value.removeprefix(VERIFIERS)
    if named == value:
        return anchored(value, folders) if is_file_id(value) else value
    return f"{VERIFIERS}{existing(named, folders)}" if named.startswith((".", "~")) else value


def _own_code(tree: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Tables with a key that may name a file of the user's own code."""
    trainer = tree.get("trainer")
    loss = trainer.get("loss") if isinstance(trainer, dict) else None
    yield from ((loss, "type"), (loss, "advantage"))
    yield from ((entry, "id") for entry in _entries(tree))


def _entries(tree: dict[str, Any]) -> list[dict[str, Any]]:
    orchestrator = tree.get("orchestrator")
    listed = orchestrator.get("env") if isinstance(orchestrator, dict) else None
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
