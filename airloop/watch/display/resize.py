"""A live block when its window is made narrower: most terminals then break its lines in two, and it has to be found
again further up before it is drawn over."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType

from airloop.watch.display.board import Board


class Narrower(RenderHook):
    """Put after the live display's own hook: what comes first in a redraw is the way up to the block's first line."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        more = broken(self._board.drawn, self._console.width) if reflows(os.environ) else 0
        if not more or not renderables:
            return renderables
        self._board.drawn = []  # found once; the redraw says anew what it is
        up = Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * more)
        return [renderables[0], up, *renderables[1:]]


def broken(lines: list[int], width: int) -> int:
    """How many more lines there are when lines of these lengths are shown in `width` columns."""
    return sum((length - 1) // width for length in lines if length > width) if width > 0 else 0


def reflows(surroundings: Mapping[str, str]) -> bool:
    """The plain xterm, the Linux console and GNU screen cut lines off instead."""
    if surroundings.get("TMUX"):
        return True
    name = surroundings.get("TERM", "")
    return not (surroundings.get("XTERM_VERSION") or name == "linux" or name.startswith("screen"))
