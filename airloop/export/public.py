"""A config that may be read by anybody: without this machine's paths and without keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from airloop.config import Config, LogbookConfig
from airloop.sinks import SINKS
from airloop.text.keys import HIDDEN
from airloop.text.public import SECRET, without_paths


def public_config(config: Config) -> Config:
    """Without what is only of this machine or of its user: where runs are kept, what is logged where."""
    private = {"output_dir": "outputs", "logbook": LogbookConfig(), **dict.fromkeys(SINKS)}
    found: Config = _public(config.model_copy(update=private))
    return found


def _public(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_copy(update={key: _public(getattr(value, key)) for key in type(value).model_fields})
    if isinstance(value, dict):
        return {key: HIDDEN if SECRET.search(key) else _public(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_public(item) for item in value]
    return without_paths(value) if isinstance(value, str) else value
