"""A text that may be read by anybody: without this machine's paths and without keys."""

from __future__ import annotations

import os
import re
from pathlib import Path

HIDDEN = "…"
SECRET = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?)$")
_ROOTED = re.compile(r"~|/|[A-Za-z]:[\\/]")
# A path somewhere in a line, also after a colon; what follows "http:" is none.
_PATH = re.compile(r"(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~|[A-Za-z]:)?/(?:[^\s\"'/]+/)*(?=[^\s\"'/])")
_LEAST = 8  # characters: a shorter value of a variable is a word that stands anywhere


def without_paths(text: str) -> str:
    """Of each path its last part."""
    if _ROOTED.match(text) and (not re.search(r"\s", text) or Path(text).expanduser().exists()):
        last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
        return f"{HIDDEN}/{last}"
    return _PATH.sub(f"{HIDDEN}/", text)


def without_secrets(text: str) -> str:
    """Whatever a variable of the environment keeps secret, wherever it has got to."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= _LEAST:
            text = text.replace(value, HIDDEN)
    return text
