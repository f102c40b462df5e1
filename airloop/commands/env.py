"""`air env`: environments of other libraries, each in an interpreter of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from airloop.commands.common import Json, print_json, saying

env = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@env.callback()
def environments() -> None:
    """Environments of other libraries."""


@env.command("install")
def install_environment(
    name: Annotated[str, typer.Argument(help='Of the environment: then id = "verifiers:NAME" finds it.')],
    what: Annotated[
        list[str] | None,
        typer.Argument(help="What pip is to install: packages, folders, addresses. By default its name."),
    ] = None,
    extra_index_url: Annotated[list[str] | None, typer.Option(help="As pip has it: an index beside its own.")] = None,
    as_json: Json = False,
) -> None:
    """Install an environment of verifiers, with that library, where nothing else is: air env install reverse-text."""
    from airloop.verifiers.host import Host
    from airloop.verifiers.installed import install

    options = [word for url in extra_index_url or () for word in ("--extra-index-url", url)]
    with saying(f"installing {name}", quiet=as_json):
        folder = install(name, what or [name], options)
    with saying("loading it", quiet=as_json):
        host = Host(name, str(folder / "bin" / "python"), {})
        try:
            found: dict[str, Any] = host.describe()
        finally:
            host.close()
    if as_json:
        print_json({"folder": str(folder), **found})
        return
    rewards = ", ".join(f"{name} ({weight:g})" for name, weight in (found["components"] or {"total": 1.0}).items())
    print(f"{folder}: verifiers {found['version']} ({found['interface']}); rewards: {rewards}")
    print(f'use it: id = "verifiers:{name}"')
    for lacks, fix in found["lacks"]:
        print(f"not ready: {lacks}\n  fix: {fix}")
