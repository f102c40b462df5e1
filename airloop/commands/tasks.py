"""`air tasks` and `air replay`: what there is to train on, as the model sees it, and whether it works here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from airloop.commands.common import Json, fail, print_json, saying
from airloop.errors import AirError
from airloop.extras import check_extra

tasks = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
MlgymRoot = Annotated[str | None, typer.Option(help="An MLGym checkout; by default the variable AIR_MLGYM_ROOT.")]


@tasks.callback()
def all_environments(context: typer.Context) -> None:
    """The registered environments; `list`, `show`, `check` and `audit` say more."""
    if context.invoked_subcommand is None:
        from airloop.eval.tasks import format_environments, list_environments

        print(format_environments(list_environments(), with_args=False))


@tasks.command("list")
def list_tasks(
    environments: Annotated[list[str] | None, typer.Argument(help="Only these, in detail.")] = None,
    mlgym_root: MlgymRoot = None,
    as_json: Json = False,
) -> None:
    """The registered environments, how many tasks each has, and the research tasks by name."""
    from airloop.eval.tasks import format_environments, list_environments

    with saying("looking at the tasks", quiet=as_json):  # the first time, data is prepared
        rows = list_environments(environments or (), mlgym_root, with_tasks=True)
    print_json(rows) if as_json else print(format_environments(rows, with_args=bool(environments)))


@tasks.command("show")
def show_tasks(
    environment: Annotated[str, typer.Argument(help="The environment's id, as `air tasks list` shows it.")],
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 3,
    split: Annotated[str, typer.Option(help="train, eval or test.")] = "train",
    arg: Annotated[list[str] | None, typer.Option(help="An argument of the environment, as in max_turns=6.")] = None,
    model: Annotated[str | None, typer.Option(help="Whose chat template: a hub id or a directory.")] = None,
    play: Annotated[str | None, typer.Option(help="The whole episodes of a script instead: oracle, demo, …")] = None,
    as_json: Json = False,
) -> None:
    """Tasks as the model will see them: through its chat template, with the number of tokens."""
    from airloop.eval.tasks import format_tasks, parse_args
    from airloop.eval.tasks import show_tasks as show

    if play is not None:
        from airloop.eval.played import format_played, play_tasks

        if model is not None:
            raise AirError("--play shows messages, which --model does not change.", "leave one of the two out.")
        played = play_tasks(environment, split, n, play, parse_args(arg or ()))
        print_json(played) if as_json else print(format_played(played))
        return
    rows = show(environment, split, n, parse_args(arg or ()), model)
    print_json(rows) if as_json else print(format_tasks(rows))


@tasks.command("check")
def check_task(
    name: Annotated[str, typer.Argument(help="A research task, as `air tasks list` names it.")],
    mlgym_root: MlgymRoot = None,
    source: Annotated[str, typer.Option(help="auto, builtin or checkout: which, where both have the name.")] = "auto",
    as_json: Json = False,
) -> None:
    """Try a research task out: open it in the sandbox, run its baseline, validate that."""
    check_extra("mlgym", "A research task")
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        display.say(f"air tasks check: {name}")
        display.phase("loading libraries")
        from airloop.envs.mlgym.tasks_report import check_json, format_check
        from airloop.eval.tasks import check_task as check

        result = check(name, mlgym_root, source, display)
    print_json(check_json(result)) if as_json else print(format_check(result))
    sys.exit(result.exit_code)


@tasks.command("audit")
def audit_rewards(
    environment: Annotated[str, typer.Argument(help="An environment's id, or ./my_env.py:MyEnv.")],
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "--args", help="An argument of the environment, as in max_turns=6.")
    ] = None,
    reward: Annotated[
        list[str] | None, typer.Option("--reward", "--rewards", help="A component's weight, as in headroom=1.0.")
    ] = None,
    per_kind: Annotated[int, typer.Option(min=1, help="How many tasks of each kind are played by every script.")] = 8,
    as_json: Json = False,
) -> None:
    """Play scripts that work and scripts that cheat: 0 every honest one earns more, 1 not so, 2 not all was judged."""
    from airloop.envs.base import load_environment
    from airloop.eval.tasks import parse_args, parse_weights
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        display.say(f"air tasks audit: {environment}")
        display.phase("loading libraries")
        env = load_environment(environment, parse_args(arg or ()))
        from airloop.eval.audit import audit
        from airloop.eval.audit_report import as_json as report_of
        from airloop.eval.audit_report import format_audit

        found = audit(env, per_kind, parse_weights(reward or ()), display)
        report = report_of(found, env)
    print_json(report) if as_json else print(format_audit(report, found))
    sys.exit(found.exit_code)


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
    import asyncio

    from airloop.envs.mlgym.replay import ReplayOptions, replay_file
    from airloop.envs.mlgym.replay_report import as_json as replay_json
    from airloop.envs.mlgym.replay_report import format_replay
    from airloop.errors import InfraError
    from airloop.watch.display.display import Display

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
