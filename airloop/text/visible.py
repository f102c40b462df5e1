"""Text of models and environments, made safe for a terminal: every sign is seen, none is obeyed."""

from __future__ import annotations

import re

# C0 and C1 controls but tab and newline; signs that turn the direction of a line or hide in it; halves of a pair,
# which no terminal's encoding can hold.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Control codes as `\\x1b` and the like. Line ends of other systems are line ends."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """The beginning of a text, on one line of at most `width` signs."""
    words = " ".join(visible(text[: 4 * width + 200]).split())
    return words if len(words) <= width else words[: max(0, width - 1)] + "…"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
