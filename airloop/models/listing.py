"""The models on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airloop.errors import AirError
from airloop.models.checks import check_config, check_weights, read_config
from airloop.models.sources import DEFAULT_MODEL, cached_conversions, cached_snapshots


@dataclass(frozen=True, slots=True)
class ModelRow:
    name: str
    where: str  # "air cache", "hub cache" or "to be fetched"
    path: Path | None
    size: int  # bytes on disk
    type: str
    trainable: bool
    why_not: str = ""
    default: bool = False


def list_models() -> list[ModelRow]:
    """Models on this machine, and the default whether or not it is."""
    rows = [_row(name, "air cache", path) for name, path in cached_conversions()]
    rows += [_row(name, "hub cache", path) for name, path in cached_snapshots()]
    if not any(row.default for row in rows):
        rows.append(ModelRow(DEFAULT_MODEL, "to be fetched", None, 0, "llama", True, default=True))
    return sorted(rows, key=lambda row: (not row.default, row.name))


def _row(name: str, where: str, path: Path) -> ModelRow:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    kind, why_not = "?", ""
    try:
        config = read_config(path, name)
        kind = str(config.get("model_type", "?"))
        check_config(config, name)
        check_weights(path, name)
    except AirError as error:
        why_not = error.problem
    return ModelRow(name, where, path, size, kind, not why_not, why_not, name == DEFAULT_MODEL)
