"""What may be read by anybody: a config and a text without this machine's paths and without keys."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from airloop.config import Config, LogbookConfig

HIDDEN = "…"
_SECRET = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?)$")
_ROOTED = re.compile(r"~|/|[A-Za-z]:[\\/]")
# A path somewhere in a line, also after a colon; what follows "http:" is none.
_PATH = re.compile(r"(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~|[A-Za-z]:)?/(?:[^\s\"'/]+/)*(?=[^\s\"'/])")
_LEAST = 8  # characters: a shorter value of a variable is a word that stands anywhere


def public_config(config: Config) -> Config:
    """Without what is only of this machine or of its user: where runs are kept, what is logged where."""
    private = {"output_dir": "outputs", "logbook": LogbookConfig(), "wandb": None, "tensorboard": None}
    found: Config = _public(config.model_copy(update=private))
    return found


def _public(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_copy(update={key: _public(getattr(value, key)) for key in type(value).model_fields})
    if isinstance(value, dict):
        return {key: HIDDEN if _SECRET.search(key) else _public(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_public(item) for item in value]
    return without_paths(value) if isinstance(value, str) else value


def without_paths(text: str) -> str:
    """Of each path its last part."""
    if _ROOTED.match(text) and (not re.search(r"\s", text) or Path(text).expanduser().exists()):
        last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
        return f"{HIDDEN}/{last}"
    return _PATH.sub(f"{HIDDEN}/", text)


def without_secrets(text: str) -> str:
    """Whatever a variable of the environment keeps secret, wherever it has got to."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= _LEAST:
            text = text.replace(value, HIDDEN)
    return text
