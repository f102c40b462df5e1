"""What commands share: how they print, and how they end when they cannot go on."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

from airloop.plain import speaks_utf8

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=not speaks_utf8(sys.stdout)))


def fail(text: str, code: int) -> NoReturn:
    print(f"air: {text}", file=sys.stderr)
    sys.exit(code)
