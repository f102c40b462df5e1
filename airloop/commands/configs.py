"""`air configs`: the configs and hypotheses that come with air, by name."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from airloop.commands.common import Json, print_json
from airloop.errors import AirError
from airloop.os_errors import refusal
from airloop.shipped import LAB, about, names, shipped

configs = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="As `air configs list` shows it.")]


@configs.command("list")
def list_configs(as_json: Json = False) -> None:
    """Every config and hypothesis with its first sentence."""
    rows = [{"name": name, "about": about(name)} for name in names(hypotheses=True)]
    if as_json:
        print_json(rows)
        return
    wide = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:{wide}s}  {row['about']}")
    print("\nair train NAME trains one; air lab run NAME those of lab/; air configs copy NAME, to change one.")


@configs.command()
def show(name: Name) -> None:
    """A config as it is written."""
    print(shipped(name, hypotheses=True).read_text(encoding="utf-8"), end="")


@configs.command()
def copy(
    name: Name,
    to: Annotated[Path | None, typer.Argument(help="A file or a folder; by default here.", metavar="[DEST]")] = None,
    as_json: Json = False,
) -> None:
    """Write a config where it can be changed; nothing is overwritten."""
    source = shipped(name, hypotheses=True)
    place = to or Path()
    place = place / source.name if place.is_dir() else place
    try:
        with place.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise AirError(f"{place} is there already.", f"name another: air configs copy {name} DEST") from None
    except FileNotFoundError:
        raise AirError(f"There is no folder {place.parent} to write {place.name} into.", "make it first.") from None
    except OSError as error:
        raise refusal(error, "written") from None
    command = f"air {'lab run' if name.startswith(LAB) else 'train @'} {shlex.quote(str(place))}"
    print_json({"file": str(place)}) if as_json else print(f"{place}\nuse it with `{command}`")
