"""Commands that packages add, by entry points in the group "airloop.commands": `view`, or `tasks.check` for one under
`air tasks`. Each is a function or a typer.Typer; its module must import nothing slow."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer

from airloop.commands.help import Group
from airloop.plugins import plugins


def add_plugins(app: typer.Typer, groups: Mapping[str, typer.Typer]) -> None:
    """One that cannot be imported is told of on stderr and hides no other."""
    for name, point in sorted(plugins("commands").items()):
        group, _, word = name.rpartition(".")
        try:
            command = point.load()
            into = groups[group] if group else app
        except Exception as error:
            where = point.dist.name if point.dist else point.value
            print(f"air: the command {name!r} of {where} cannot be used: {error!r}", file=sys.stderr)
            continue
        if isinstance(command, typer.Typer):
            into.add_typer(command, name=word, cls=Group)
        else:
            into.command(word)(command)
