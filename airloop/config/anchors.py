"""Paths in a config are made absolute as it is read: what stands in a file is relative to the file's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airloop.own_code import anchored, is_file_id

_PATH_KEYS = (("model", "chat_template"), ("model", "adapter"))
# a path only if it starts with a dot
_PATH_OR_NAME_KEYS = (("model", "name"), ("warmstart", "source"), ("logbook", "parent"))


def anchor_paths(tree: dict[str, Any], folders: list[Path]) -> None:
    """Make paths absolute, so that nothing depends on where the resolved config is loaded from (A8)."""
    for section, key in (*_PATH_KEYS, *_PATH_OR_NAME_KEYS):
        table = tree.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(value, str) or not value:
            continue
        if (section, key) in _PATH_OR_NAME_KEYS and not value.startswith((".", "~")):
            continue
        found = (folder.absolute() / Path(value).expanduser() for folder in folders)
        table[key] = next((str(path) for path in found if path.exists()), value)
    for table, key in _own_code(tree):
        if isinstance(table, dict) and isinstance(table.get(key), str) and is_file_id(table[key]):
            table[key] = anchored(table[key], folders)


def _own_code(tree: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Tables with a key that may name a file of the user's own code."""
    trainer, orchestrator = tree.get("trainer"), tree.get("orchestrator")
    loss = trainer.get("loss") if isinstance(trainer, dict) else None
    listed = orchestrator.get("env") if isinstance(orchestrator, dict) else None
    yield from ((loss, "type"), (loss, "advantage"))
    yield from ((entry, "id") for entry in (listed if isinstance(listed, list) else []))
