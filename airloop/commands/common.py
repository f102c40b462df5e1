"""What commands share: how they print, and how they end when they cannot go on."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from airloop.errors import AirError
from airloop.os_errors import FULL, refusal
from airloop.text.plain import speaks_utf8

if TYPE_CHECKING:
    from airloop.watch.display.display import Display

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextmanager
def saying(what: str, quiet: bool = False) -> Iterator[None]:
    """Says on stderr what is being done, if it takes longer than two seconds. For commands that mostly take less than
    the display's imports."""
    timer = threading.Timer(2.0, lambda: print(f"{what} …", file=sys.stderr, flush=True))
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


def fail_of_system(error: OSError) -> NoReturn:
    """What the system refuses of a file is its user's to mend; its other errors are defects, with their traceback."""
    if error.filename is not None or isinstance(error, FileNotFoundError):
        fail(str(refusal(error)), 1)
    if isinstance(error, BrokenPipeError):  # as in `air … | head`: nobody listens any more
        _say_nothing_more()
        sys.exit(1)  # as typer does for what it hears of it
    if error.errno in FULL:
        _say_nothing_more()
        told = AirError(f"What was to be written could not be: {error.strerror}.", "free space where the output goes.")
        fail(str(told), 1)
    raise error


def _say_nothing_more() -> None:
    """Python itself would try again at its end, and say so."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse_minutes(context: typer.Context) -> None:
    """Only a training run is planned into a time; a command that could not keep to it does not take the flag."""
    if any(word.partition("=")[0] in ("--minutes", "--budget.minutes") for word in context.args):
        raise AirError(
            f"`air {context.info_name}` keeps no budget of time: --minutes is for `air train`, which plans the "
            "supervised start, the steps and the evaluations into it.",
            "leave --minutes out.",
        )


def begin(display: Display, text: str) -> None:
    """The first line, before the seconds that torch and transformers take to be imported."""
    display.say(text)
    display.phase("loading libraries")
