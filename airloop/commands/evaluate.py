"""`air eval`: any agent on held-out tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airloop import interrupts
from airloop.commands.common import Json, begin, fail, print_json, refuse_minutes
from airloop.commands.help import asks_for_help, print_help

EVAL_HELP = """air eval @ config.toml [--key value …] [options]

Any agent on held-out tasks: the same tasks, seeds and sampling for all.

  --agent WHO          model (the config's, default), run:DIR[@STEP|@best] (a run's policy, with the run's own
                       config), scripted:oracle, or url:http://127.0.0.1:8000/v1
  --env ID             another environment than the config's: of a run, how far it carries over; with --arg name=value
                       for each of its arguments
  --split NAME         default: orchestrator.eval.test_split
  --n N                tasks; default: orchestrator.eval.num_examples
  --rollouts K         episodes per task; default: orchestrator.eval.rollouts_per_example. Of several, also the success
                       of the best and of the answer that most of them gave
  --temperature T      default: orchestrator.eval.temperature
  --url-model NAME     the model at the URL; with --price-in and --price-out (per million tokens) its cost
  --api-key-env NAME   the environment variable that holds the URL's key
  --out DIR            default: the next free outputs/eval-AGENT-N; one that was stopped is continued
  --json               print the result as JSON

Keys:"""


def evaluate(
    context: typer.Context,
    agent: Annotated[str, typer.Option()] = "model",
    env: Annotated[str, typer.Option()] = "",
    arg: Annotated[list[str] | None, typer.Option("--arg", "--args")] = None,
    split: Annotated[str | None, typer.Option()] = None,
    n: Annotated[int | None, typer.Option("--n")] = None,
    rollouts: Annotated[int | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    url_model: Annotated[str | None, typer.Option()] = None,
    price_in: Annotated[float | None, typer.Option()] = None,
    price_out: Annotated[float | None, typer.Option()] = None,
    api_key_env: Annotated[str | None, typer.Option()] = None,
    out: Annotated[Path | None, typer.Option()] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model, a run, a script or a URL on held-out tasks: air eval @ config.toml --agent …"""
    if asks_for_help(context.args):
        print_help(EVAL_HELP, context.args)
    refuse_minutes(context)
    from airloop.watch.display.display import Display

    try:
        with Display(quiet=as_json) as display:
            begin(display, f"air eval: {agent}")
            from airloop.eval.agents import UrlOptions
            from airloop.eval.evaluate import EvalOptions, format_report
            from airloop.eval.evaluate import evaluate as run
            from airloop.eval.tasks import parse_args

            url = UrlOptions(url_model, price_in, price_out, api_key_env)
            options = EvalOptions(agent, split, n, rollouts, temperature, out, url, env, parse_args(arg or ()))
            report = run(context.args, options, display)
    except KeyboardInterrupt:
        fail("stopped.", interrupts.exit_code())
    print_json(report) if as_json else print(format_report(report))
