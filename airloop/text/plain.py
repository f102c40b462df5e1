"""Output where the terminal, or a file that output goes to, has no UTF-8: the same lines with plainer signs."""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO

NAME = "airloop.text.plain"
# The nearest in ASCII; a sparkline becomes digits.
SIGNS = {
    **dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True)),
    **dict(zip("│┃└┘┌┐─━●•·–—−‑", "||++++--**.----", strict=True)),
    "→": "->",
    "←": "<-",
    "↑": "^",
    "↓": "v",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "×": "x",
    "±": "+-",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "✓": "ok",
    "✗": "x",
    "\N{NO-BREAK SPACE}": " ",
}


def begin_with_utf8() -> None:
    """Under a locale without UTF-8, Python reads names of files and arguments so that they cannot be written to a file
    again: then this program is begun once more in Python's UTF-8 mode, with its output as it was."""
    if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return  # the second: it was begun anew already, and something else (-X utf8=0) had its way
    os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding or "ascii")
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def use_plain_signs() -> None:
    """Nothing that is printed can fail for its letters any more; what has no plain form becomes its number."""
    codecs.register_error(NAME, _plainer)
    for stream in (sys.stdout, sys.stderr):
        if not speaks_utf8(stream):
            stream.reconfigure(errors=NAME)  # type: ignore[union-attr]


def speaks_utf8(stream: IO[str]) -> bool:
    """Also of a stream that is no file of text, which decides nothing here."""
    if not hasattr(stream, "reconfigure"):
        return True
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name == "utf-8"


def _plainer(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(SIGNS.get(sign) or f"\\u{ord(sign):04x}" for sign in signs), error.end
