"""`air distill`: a policy's best episodes as demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airloop import interrupts
from airloop.commands.common import Json, begin, fail, print_json, refuse_minutes
from airloop.commands.help import asks_for_help, print_help
from airloop.errors import AirError

DISTILL_HELP = """air distill --agent run:DIR [options] [@ config.toml --key value …]

Plays training tasks several times each and keeps the best episodes that succeeded: demonstrations of the next
supervised start, in the policy's own words. Trained on them, a policy may be distilled again.

  --agent WHO          run:DIR[@STEP|@best] (a run's policy), or model (the config's)
  --n N                tasks of the training split; default: 256
  --rollouts K         episodes of each; default: 8
  --keep M             of each task at most this many; default: 2
  --min-success S      the least success of one that is kept; default: 1
  --min-reward R       the least reward of one
  --temperature T      default: orchestrator.eval.temperature
  --out DIR            default: the next free outputs/eval-AGENT-N; one that was stopped is continued
  --json               print the result as JSON

Keys:"""


def distill(
    context: typer.Context,
    agent: Annotated[str, typer.Option()] = "model",
    n: Annotated[int, typer.Option("--n", min=1)] = 256,
    rollouts: Annotated[int, typer.Option(min=1)] = 8,
    keep: Annotated[int, typer.Option(min=1)] = 2,
    min_success: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    min_reward: Annotated[float | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    out: Annotated[Path | None, typer.Option()] = None,
    as_json: Json = False,
) -> None:
    """A policy's best episodes as demonstrations of a supervised start: air distill --agent run:DIR."""
    if asks_for_help(context.args):
        print_help(DISTILL_HELP, context.args)
    refuse_minutes(context)
    if agent != "model" and not agent.startswith("run:"):
        raise AirError(
            f"{agent!r} has no tokens of its own to learn from.", "--agent run:DIR, or model (the config's)."
        )
    from airloop.watch.display.display import Display

    try:
        with Display(quiet=as_json) as display:
            begin(display, f"air distill: {agent}")
            from airloop.eval.distill import Kept, format_distilled
            from airloop.eval.distill import distill as run
            from airloop.eval.evaluate import EvalOptions

            options = EvalOptions(agent, "train", n, rollouts, temperature, out)
            report = run(context.args, options, Kept(keep, min_success, min_reward), display)
    except KeyboardInterrupt:
        fail("stopped.", interrupts.exit_code())
    print_json(report) if as_json else print(format_distilled(report))
