"""What commands share: how they print, and how they end when they cannot go on."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from airloop.text.plain import speaks_utf8

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextmanager
def saying(what: str, quiet: bool = False, after_s: float = 2.0) -> Iterator[None]:
    """Says on stderr what is being done, if it takes longer than that. For commands that mostly take less than the
    display's imports."""
    timer = threading.Timer(after_s, lambda: print(f"{what} …", file=sys.stderr, flush=True))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=not speaks_utf8(sys.stdout)))


def fail(text: str, code: int) -> NoReturn:
    print(f"air: {text}", file=sys.stderr)
    sys.exit(code)
