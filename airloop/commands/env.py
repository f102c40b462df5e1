"""`air env`: environments of other libraries, each in an interpreter of its own, and ours for others to load."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from airloop.commands.common import Json, print_json, saying

env = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@env.callback()
def environments() -> None:
    """Environments that come and go."""


@env.command("package")
def package_environment(
    environment: Annotated[str, typer.Argument(help="An environment's id, or ./my_env.py:MyEnv.")],
    out: Annotated[Path, typer.Option(help="Where to write; must be new or empty.")],
    name: Annotated[str, typer.Option(help="Of the package; by default air_ and the environment's own.")] = "",
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "--args", help="An argument that it has by default, as max_turns=6.")
    ] = None,
    reward: Annotated[
        list[str] | None, typer.Option("--reward", "--rewards", help="A component's weight, as in headroom=1.0.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a package of an environment that verifiers and prime-rl load: air env package tune --out DIR."""
    with saying("looking at the environment", quiet=as_json):
        from airloop.eval.tasks import parse_args, parse_weights
        from airloop.packaged.writing import write_package

        args, rewards = parse_args(arg or ()), parse_weights(reward or ())
        written = write_package(environment, out, name=name, args=args, rewards=rewards)
    if as_json:
        print_json({"directory": str(out), "module": written.module, "files": list(written.files)})
        return
    print(
        f"{out}: {', '.join(written.files)}\n"
        f"install it beside airloop and verifiers: pip install -e {shlex.quote(str(out))}\n"
        f"try it: vf-eval {written.distribution} -n 5 -m MODEL (README.md says how prime-rl takes it)"
    )


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
    """Install an environment of verifiers, with that library, by itself: air env install my-env ./my_env."""
    from airloop.verifiers.host import Host
    from airloop.verifiers.installed import install
    from airloop.watch.display.display import Display

    options = [word for url in extra_index_url or () for word in ("--extra-index-url", url)]
    with Display(quiet=as_json) as display:
        display.say(f"air env install: {name}")
        display.phase(f"installing {' '.join(what or [name])}")
        folder = install(name, what or [name], options)
        display.phase("loading it")
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
