"""Help that fits the terminal: lines are folded, and nothing is cut. `air train --help trainer.loss` is one section."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from airloop.errors import AirError
from airloop.text.command_flags import note_flags

WIDEST = 120
NARROWEST = 40
WHOLE = 10_000  # letters of a command's first sentence: all of it
# `  --name VALUE   what it does`: the second line of such a row begins where the text of the first does
_ROW = re.compile(r"(\s+-\S+(?: \S+)*\s{2,})(?=\S)")


class Group(TyperGroup):
    """A group of commands whose list has the whole first sentence of each."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        params = found[1].params if found[1] else ()
        note_flags(["--help", *(flag for option in params for flag in (*option.opts, *option.secondary_opts))])
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(WHOLE)) for name, one in found if one is not None and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def columns() -> int:
    """Of the terminal; in a pipe what COLUMNS says, or 80."""
    return max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))


def asks_for_help(args: Sequence[str]) -> bool:
    return bool({"--help", "-h"} & {*args})


def print_help(text: str, args: Sequence[str]) -> None:
    """A command's help and every key, or only the keys that are named after `--help`; then it ends."""
    from airloop.config.keys import describe_keys, format_keys

    place = next(index for index, word in enumerate(args) if word in ("--help", "-h"))
    topics = [word for word in args[place + 1 : place + 2] if not word.startswith(("-", "@"))]
    if topics:
        print(_about(topics[0]))
    else:
        print(f"{folded(text, columns())}\n\n{format_keys(describe_keys(), columns())}")
    raise typer.Exit(0)


def _about(name: str) -> str:
    """A section's keys or one key, or what another trainer's key is called here; AirError with the nearest names."""
    from airloop.config.coming_from import said_of
    from airloop.config.keys import find_keys, format_keys, nearest_names

    if found := find_keys(name):
        return format_keys(found, columns())
    if told := said_of(name):
        return folded(told, columns())
    near = nearest_names(name)
    hint = f"the nearest: {', '.join(near)}; " if near else ""
    raise AirError(f"There is no key and no section {name!r}.", f"{hint}`air train --help` lists every key.")


def folded(text: str, width: int) -> str:
    """Paragraphs and rows of options, each filled anew; what is indented deeper goes on with the row above it."""
    blocks: list[str] = []
    for line in text.splitlines():
        joins = blocks and blocks[-1].strip() and line.strip() and not _ROW.match(line)
        if joins and (not line.startswith(" ") or line.startswith("     ")):
            blocks[-1] += f" {line.strip()}"
        else:
            blocks.append(line.rstrip())
    return "\n".join(_filled(block, width) for block in blocks)


def _filled(block: str, width: int) -> str:
    row = _ROW.match(block)
    under = len(row[1]) if row else len(block) - len(block.lstrip())
    lines = textwrap.wrap(block, width, subsequent_indent=" " * under, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)
