"""Fenced blocks in a text, as models write them: ```bash, here-documents that hold fences of their own, one-liners."""

from __future__ import annotations

import re
from dataclasses import dataclass

SHELLS = frozenset({"", "bash", "sh", "shell", "zsh", "console", "terminal", "cmd", "command"})


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    closed: bool


_OPEN = re.compile(r"[ \t]*(`{3,})[ \t]*([^`\n]*?)[ \t]*\r?\n?")
_ONE_LINE = re.compile(r"[ \t]*`{3,}([^`\n]+)`{3,}[ \t]*\r?\n?")
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)([A-Za-z_]\w*)\2")


def fenced_blocks(text: str) -> list[Block]:
    """Fenced blocks, verbatim."""
    lines = re.split(r"(?<=\n)", text)  # not splitlines(), which knows a dozen other line breaks
    blocks, at = [], 0
    while at < len(lines):
        one_line = _ONE_LINE.fullmatch(lines[at])
        opening = _OPEN.fullmatch(lines[at])
        at += 1
        if one_line:
            blocks.append(_from_one_line(one_line[1]))
        elif opening:
            end = _closing_line(lines, at, len(opening[1]))
            language = opening[2].split(maxsplit=1)[0].lower() if opening[2] else ""
            blocks.append(Block(language, _body(lines[at:end]), end < len(lines)))
            at = end + 1
    return blocks


def _from_one_line(inside: str) -> Block:
    """```ls -l``` or ```bash ls -l```, all on one line."""
    first, _, rest = inside.strip().partition(" ")
    language = first if rest.strip() and first.lower() in SHELLS else ""
    return Block(language.lower(), rest.strip() if language else inside.strip(), True)


def _body(lines: list[str]) -> str:
    """Only the line break in front of the closing fence is not the agent's own."""
    return "".join(lines).removesuffix("\n").removesuffix("\r")


def _closing_line(lines: list[str], start: int, ticks: int) -> int:
    """The line that closes a block; len(lines) if none does. Fences inside a here-document do not count,
    provided that the here-document ends."""
    at = start
    while at < len(lines):
        line = lines[at].strip()
        if len(line) >= ticks and not line.strip("`"):
            return at
        for dash, _, word in _HEREDOC.findall(lines[at]):
            at = _end_of_heredoc(lines, at, word, bool(dash))
        at += 1
    return at


def _end_of_heredoc(lines: list[str], at: int, word: str, tabs: bool) -> int:
    for later in range(at + 1, len(lines)):
        line = lines[later].rstrip("\r\n")
        if (line.lstrip("\t") if tabs else line) == word:
            return later
    return at
