"""Tables in tables, each value under one name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """`{"learner": {"loss": 1}}` → `{"learner/loss": 1}` with "/"; lists stay what they are."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, separator, f"{prefix}{key}{separator}")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
