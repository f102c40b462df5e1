"""`air log`: the logbook. Everything that reads runs is imported inside the commands."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from airloop.commands.common import Json, print_json
from airloop.commands.help import asks_for_help, print_help
from airloop.errors import AirError

log = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Named = Annotated[str, typer.Argument(metavar="RUN", help="A run: its path, its name, exp1.3 for short, or last.")]
Root = Annotated[Path, typer.Option("--dir", help="Where runs and evaluations are (their output_dir).")]
Why = Annotated[str, typer.Option("--why", help="The reason, in a sentence.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take it back.")]
RUNS = Path("outputs")


@log.callback()
def everything() -> None: ...


@log.command("list")
def list_runs(
    directory: Root = RUNS,
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    task: Annotated[str | None, typer.Option(help="Only runs of this task.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Archived runs too.")] = False,
    as_json: Json = False,
) -> None:
    """Every run: status, steps, reward, goal. Oldest first."""
    from airloop.logbook.log_text import format_list
    from airloop.logbook.logbook import logbook
    from airloop.runs.results import ALL_STATUSES
    from airloop.watch.display.display import Display

    if status is not None and status not in ALL_STATUSES:
        raise AirError(f"--status {status!r} is no status of a run.", f"use one of {', '.join(ALL_STATUSES)}.")
    with Display(quiet=as_json) as display:
        display.phase("reading the logbook")
        found = logbook(directory)
    rows = [row for row in found if status in (None, row["status"]) and task in (None, row["task"])]
    shown = [row for row in rows if everything or status or row["status"] != "archived"]
    if as_json:
        print_json(shown)
    else:
        print(format_list(shown, directory, _width(), hidden=len(rows) - len(shown)))


@log.command()
def show(run: Named, directory: Root = RUNS, as_json: Json = False) -> None:
    """One run: its goal, what changed since its parent, results, alarms, notes, files."""
    from airloop.logbook.log_text import format_page
    from airloop.logbook.logbook import choose_run, run_page

    page = run_page(choose_run(run, directory))
    print_json(page) if as_json else print(format_page(page, _width()))


@log.command()
def note(run: Named, text: Annotated[str, typer.Argument()], directory: Root = RUNS, as_json: Json = False) -> None:
    """Add a note to a run, with the time."""
    from airloop.logbook.logbook import add_text, choose_run

    path = choose_run(run, directory)
    _tell(path, add_text(path, "note", text), "noted", as_json)


@log.command()
def goal(run: Named, text: Annotated[str, typer.Argument()], directory: Root = RUNS, as_json: Json = False) -> None:
    """Say what a run is to find out. ([logbook] goal in its config does so from the beginning.)"""
    from airloop.logbook.logbook import add_text, choose_run

    path = choose_run(run, directory)
    _tell(path, add_text(path, "goal", text), "goal set", as_json)


@log.command()
def supersede(
    run: Named,
    by: Annotated[str | None, typer.Argument(metavar="NEW", help="The run that takes its place.")] = None,
    why: Why = "",
    undo: Undo = False,
    directory: Root = RUNS,
    as_json: Json = False,
) -> None:
    """Another run takes this one's place: air log supersede OLD NEW."""
    from airloop.logbook.logbook import choose_run, reopen
    from airloop.logbook.logbook import supersede as enter

    path = choose_run(run, directory)
    if undo:
        if by is not None:
            raise AirError("--undo needs no second run.", f"write air log supersede {run} --undo.")
        return _tell(path, reopen(path, "superseded"), "no longer superseded", as_json)
    if by is None:
        raise AirError("Which run takes its place?", f"write air log supersede {run} NEW.")
    newer = choose_run(by, directory)
    return _tell(path, enter(path, newer, why), f"superseded by {newer.name}", as_json)


@log.command()
def abandon(run: Named, why: Why = "", undo: Undo = False, directory: Root = RUNS, as_json: Json = False) -> None:
    """It will not be gone on with, and why."""
    _close(run, "abandoned", why, undo, directory, as_json)


@log.command()
def archive(run: Named, why: Why = "", undo: Undo = False, directory: Root = RUNS, as_json: Json = False) -> None:
    """Done with: `air log list` leaves it out. Nothing is deleted."""
    _close(run, "archived", why, undo, directory, as_json)


def _close(run: str, done: str, why: str, undo: bool, directory: Path, as_json: bool) -> None:
    from airloop.logbook.logbook import choose_run, close, reopen

    path = choose_run(run, directory)
    entry = reopen(path, done) if undo else close(path, done, why)
    _tell(path, entry, f"no longer {done}" if undo else done, as_json)


PLAN_HELP = """air log plan @ config.toml [--key value …] [--goal "…"]

Reserves the name of a run, with its config, before it is started. `air log list` shows it as planned;
`air train --resume RUN` starts it.

  --goal TEXT          what it is to find out; the same as --logbook.goal
  --json               print the result as JSON

Keys:"""


@log.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def plan(
    context: typer.Context,
    goal: Annotated[str | None, typer.Option()] = None,
    as_json: Json = False,
) -> None:
    """Reserve a name for a run before it is started: air log plan @ config.toml --goal "…"."""
    from airloop.config import load_config

    if asks_for_help(context.args):
        print_help(PLAN_HELP, context.args)
    from airloop.runs.run import Run

    flags = [*context.args, *(["--logbook.goal", goal] if goal is not None else [])]
    config = load_config(flags)
    run = Run.create(config, config.task, planned=True)
    if as_json:
        print_json({"run": str(run.path), "status": "planned", "goal": config.logbook.goal})
    else:
        print(f"{run.name} is planned\nstart it with: air train --resume {run.path}")


@log.command()
def export(
    directory: Root = RUNS,
    form: Annotated[str, typer.Option("--format", help="md or json.")] = "md",
    out: Annotated[
        Path | None, typer.Option(help="The file; - prints it. Default: LOGBOOK.md or LOGBOOK.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the whole logbook to a file that a team can commit."""
    from airloop.logbook.log_export import export_logbook

    text, where, counts = export_logbook(directory, form, out)
    if where is None:
        print(text, end="")
    elif as_json:
        print_json({"out": str(where), **counts})
    else:
        print(f"{where}: {counts['runs']} runs, {counts['baselines']} evaluations")


@log.command()
def pack(
    run: Named,
    directory: Root = RUNS,
    out: Annotated[Path | None, typer.Option(help="The file. Default: RUN.tar.xz, here.")] = None,
    as_json: Json = False,
) -> None:
    """A run in one small file, without words, tokens and weights: its curves and tables can be made anew from it."""
    from airloop.logbook.logbook import choose_run
    from airloop.runs.packed import pack_run

    path = choose_run(run, directory)
    where = out or Path(f"{path.resolve().name}.tar.xz")
    size = pack_run(path, where)
    print_json({"out": str(where), "bytes": size}) if as_json else print(f"{where}: {size / 1000:.0f} kB")


@log.command()
def baselines(
    directory: Root = RUNS,
    as_json: Json = False,
) -> None:
    """Models side by side, from the directories that `air eval` made."""
    from airloop.eval.baselines import find_baselines, format_baselines, grouped

    found = find_baselines(directory)
    if as_json:
        print_json(found)
    else:
        print(format_baselines(grouped(found), directory, _width()))


def _tell(path: Path, entry: Any, done: str, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json({"run": str(path), "entry": asdict(entry)})
    else:
        print(f"{path.name}: {done}")


def _width() -> int | None:
    """Of the terminal; None where there is none: in a pipe or a file nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
