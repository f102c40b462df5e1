"""Commands in colour: made here, by Pygments, so that the page only has to show it. Everything is escaped."""

from __future__ import annotations

import functools
import html
import json
from typing import Any

# Characters that are coloured: of one text, and of all of an answer. The rest is shown plain; colouring a megabyte
# would take a second.
LONGEST = 12_000
MOST = 40_000


class Highlighter:
    """Colours until its share of characters is used up."""

    def __init__(self, most: int = MOST) -> None:
        self._left = most

    def action(self, action: dict[str, Any], text: str) -> str:
        return self.code(text, language(action))

    def code(self, text: str, name: str) -> str:
        if name == "text" or len(text) > min(LONGEST, self._left):
            return html.escape(text)
        self._left -= len(text)
        return _coloured(text, name)


def action_text(action: dict[str, Any]) -> str:
    """What was asked for, as a person reads it: a command, code, or a call's arguments."""
    if action["kind"] != "tool":
        return str(action["text"])
    arguments = action["arguments"]
    if list(arguments) == ["code"] and isinstance(arguments["code"], str):
        return str(arguments["code"])
    return json.dumps(arguments, ensure_ascii=False, indent=2)


def language(action: dict[str, Any]) -> str:
    if action["kind"] == "command":
        return "bash"
    if action["kind"] != "tool":
        return "text"
    return "python" if list(action["arguments"]) == ["code"] else "json"


@functools.lru_cache(maxsize=512)
def _coloured(text: str, name: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True)))
