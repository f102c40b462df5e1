"""A text that may be read by anybody: without this machine's paths. airloop/text/keys.py leaves out keys."""

from __future__ import annotations

import re
from pathlib import Path

from airloop.text.keys import HIDDEN

# Of an argument whose value nobody else needs to see.
SECRET = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?)$")
_ROOTED = re.compile(r"~|/|[A-Za-z]:[\\/]")
# A path somewhere in a line, also after a colon; what follows "http:" is none.
_PATH = re.compile(r"(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~|[A-Za-z]:)?/(?:[^\s\"'/]+/)*(?=[^\s\"'/])")


def without_paths(text: str) -> str:
    """Of each path its last part."""
    if _ROOTED.match(text) and (not re.search(r"\s", text) or Path(text).expanduser().exists()):
        last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
        return f"{HIDDEN}/{last}"
    return _PATH.sub(f"{HIDDEN}/", text)
