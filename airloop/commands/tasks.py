"""`air tasks`: what there is to train on, as the model sees it. Packages add commands of their own to it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from airloop.commands.common import Json, print_json, saying
from airloop.errors import AirError

tasks = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
Args = Annotated[
    list[str] | None, typer.Option("--arg", "--args", help="An argument of the environment, as in max_turns=6.")
]


@tasks.callback()
def all_environments(context: typer.Context) -> None:
    """The registered environments; `list`, `show`, `check` and `audit` say more."""
    if context.invoked_subcommand is None:
        from airloop.eval.tasks import format_environments, list_environments

        print(format_environments(list_environments(), with_args=False))


@tasks.command("list")
def list_tasks(
    environments: Annotated[list[str] | None, typer.Argument(help="Only these, in detail.")] = None,
    arg: Args = None,
    mlgym_root: Annotated[str | None, typer.Option(hidden=True)] = None,  # as it was called before there was --arg
    as_json: Json = False,
) -> None:
    """The registered environments, how many tasks each has, and the research tasks by name."""
    from airloop.eval.tasks import format_environments, list_environments, parse_args

    with saying("looking at the tasks", quiet=as_json):  # the first time, data is prepared
        args = parse_args(arg or ()) | ({"mlgym_root": mlgym_root} if mlgym_root else {})
        rows = list_environments(environments or (), args, with_tasks=True)
    text = format_environments(rows, with_args=bool(environments))
    for row in rows:
        row.pop("catalogue_text", None)
    print_json(rows) if as_json else print(text)


@tasks.command("show")
def show_tasks(
    environment: Annotated[str, typer.Argument(help="The environment's id, as `air tasks list` shows it.")],
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 3,
    split: Annotated[str, typer.Option(help="train, eval or test.")] = "train",
    arg: Args = None,
    model: Annotated[str | None, typer.Option(help="Whose chat template: a hub id or a directory.")] = None,
    play: Annotated[str | None, typer.Option(help="The whole episodes of a script instead: oracle, demo, …")] = None,
    as_json: Json = False,
) -> None:
    """Tasks as the model will see them: through its chat template, with the number of tokens."""
    from airloop.eval.tasks import format_tasks, parse_args
    from airloop.eval.tasks import show_tasks as show

    if play is not None:
        from airloop.eval.transcripts import format_transcripts, play_tasks

        if model is not None:
            raise AirError("--play shows messages, which --model does not change.", "leave one of the two out.")
        played = play_tasks(environment, split, n, play, parse_args(arg or ()))
        print_json(played) if as_json else print(format_transcripts(played))
        return
    rows = show(environment, split, n, parse_args(arg or ()), model)
    print_json(rows) if as_json else print(format_tasks(rows))


@tasks.command("audit")
def audit_rewards(
    environment: Annotated[str, typer.Argument(help="An environment's id, or ./my_env.py:MyEnv.")],
    arg: Args = None,
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
