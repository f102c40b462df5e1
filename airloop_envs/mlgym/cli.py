"""`air tasks check`, `prepare` and `published`, and `air replay`: a research task tried out, its data made, what
MLGym's own agents reached in it, a recorded episode played again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from airloop.commands.common import Json, fail, print_json, saying
from airloop.errors import AirError
from airloop.extras import check_extra
from airloop.plugins import plugins

if TYPE_CHECKING:
    from airloop_envs.mlgym.args import MlgymArgs

MlgymRoot = Annotated[str | None, typer.Option(help="An MLGym checkout; by default the variable AIR_MLGYM_ROOT.")]
TaskName = Annotated[str, typer.Argument(help="A research task, as `air tasks list` names it.")]
Whose = Annotated[str, typer.Option("--source", help="auto, builtin or checkout: which, where both have the name.")]


def _args(name: str, mlgym_root: str | None, source: str) -> MlgymArgs:
    """Of an environment with that one task."""
    check_extra("mlgym", "A research task")
    if name in plugins("envs"):
        raise AirError(f"{name!r} is an environment, not one of its tasks.", f"air tasks show {name}")
    from airloop_envs.mlgym.args import MlgymArgs, Source

    if source not in get_args(Source):
        raise AirError(f"--source {source!r} is not known.", f"use {', '.join(get_args(Source))}.")
    return MlgymArgs(task_configs=[name], mlgym_root=mlgym_root, source=cast(Source, source), standby=0)


def check_task(name: TaskName, mlgym_root: MlgymRoot = None, source: Whose = "auto", as_json: Json = False) -> None:
    """Try a research task out: open it in the sandbox, run its baseline, validate that."""
    args = _args(name, mlgym_root, source)
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        display.say(f"air tasks check: {name}")
        display.phase("loading libraries")
        from airloop.eval.tasks import count_tokens
        from airloop_envs.mlgym.library import without_warnings
        from airloop_envs.mlgym.trial import check_json, format_check
        from airloop_envs.mlgym.trial import check_task as check

        with without_warnings():
            result = asyncio.run(check(args, display, count_tokens))
    print_json(check_json(result)) if as_json else print(format_check(result))
    sys.exit(result.exit_code)


def prepare_task(name: TaskName, mlgym_root: MlgymRoot = None, source: Whose = "auto", as_json: Json = False) -> None:
    """Make a research task's data: a checkout's by its own script, in a copy; air's draws of its rows."""
    args = _args(name, mlgym_root, source)
    from airloop.watch.display.display import Display
    from airloop_envs.mlgym import preparation
    from airloop_envs.mlgym.library import without_warnings

    with Display(quiet=as_json) as display, without_warnings():
        found = asyncio.run(preparation.prepare_task(args, display))
    print_json(preparation.as_json(found)) if as_json else print(preparation.format_preparation(found))
    sys.exit(found.exit_code)


def published(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks of the checkout; by default all that air has too.")
    ] = None,
    mlgym_root: MlgymRoot = None,
    beside: Annotated[
        list[str] | None,
        typer.Option("--with", help="An evaluation of ours, a run (its before and after), or RUN:step_0010."),
    ] = None,
    as_json: Json = False,
) -> None:
    """MLGym's published agents, from a checkout's trajectories, beside evaluations of ours: best and mean."""
    check_extra("mlgym", "A table of research tasks")
    from airloop_envs.mlgym import standings
    from airloop_envs.mlgym.checkout import find_root

    root = find_root(mlgym_root)
    if root is None:
        raise AirError(
            "The published runs are in a checkout of MLGym, and none is named.",
            "add --mlgym-root DIR, or set the variable AIR_MLGYM_ROOT.",
        )
    with saying("reading the published runs", quiet=as_json):
        found = standings.standings(root, tasks or (), beside or ())
    print_json(standings.as_json(found)) if as_json else print(standings.format_standings(found))


def replay(
    file: Annotated[Path, typer.Argument(help="A .traj file of MLGym, or a trajectory of air.")],
    mlgym_root: MlgymRoot = None,
    task: Annotated[str | None, typer.Option(help="The task's name, if neither the file nor its path says it.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds for a command that trains.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Largest relative difference; by default the task's noise, or 0.02.")
    ] = None,
    turns: Annotated[bool, typer.Option("--turns", help="Every command, with its output there and here.")] = False,
    as_json: Json = False,
) -> None:
    """Play a recorded research episode again and compare its scores: 0 same, 1 different, 2 cannot be replayed."""
    check_extra("mlgym", "A research episode")
    from airloop.errors import InfraError
    from airloop.watch.display.display import Display
    from airloop_envs.mlgym.replay import ReplayOptions, replay_file
    from airloop_envs.mlgym.replay_report import as_json as replay_json
    from airloop_envs.mlgym.replay_report import format_replay

    options = ReplayOptions(mlgym_root, task, timeout, tolerance)
    try:
        with Display(quiet=as_json) as display:
            found = asyncio.run(replay_file(file, options, display))
    except AirError as error:
        fail(str(error), 2)
    except InfraError as error:
        fail(f"the sandbox failed, and with it the replay: {error}", 2)
    print_json(replay_json(found, turns)) if as_json else print(format_replay(found, turns))
    sys.exit(found.exit_code)
