"""`air init`: a folder to start from, with an environment of one file that trains as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from airloop.commands.common import Json, print_json
from airloop.errors import AirError

STARTER = Path(__file__).resolve().parents[1] / "starter"
FILES = ("my_env.py", "config.toml", "README.md")


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.", metavar="DIR")],
    as_json: Json = False,
) -> None:
    """Write a starter: an environment of one file, a config that trains it, a README of ten lines."""
    if directory.is_file():
        raise AirError(f"{directory} is a file, not a folder.", "name another place.")
    if there := [name for name in FILES if (directory / name).exists()]:
        raise AirError(
            f"{directory} has {' and '.join(there)} already.", "name another folder: nothing is overwritten."
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (directory / name).write_text((STARTER / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise AirError(f"{directory} cannot be written: {error.strerror}.", "name another folder.") from None
    if as_json:
        print_json({"directory": str(directory), "files": list(FILES)})
        return
    print(
        f"{directory}: {', '.join(FILES)}\ntrain it as it is: air train @ {shlex.quote(str(directory / 'config.toml'))}"
    )
