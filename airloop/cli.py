"""The `air` command: parse, call, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airloop import interrupts
from airloop.commands.common import Json, begin, fail, fail_of_system, print_json, refuse_minutes
from airloop.commands.configs import configs
from airloop.commands.distill import distill
from airloop.commands.env import env
from airloop.commands.evaluate import evaluate
from airloop.commands.export import export
from airloop.commands.help import WIDEST, Group, asks_for_help, print_help
from airloop.commands.init import init
from airloop.commands.log import log
from airloop.commands.plugins import add_plugins
from airloop.commands.serve import serve
from airloop.commands.tasks import tasks
from airloop.commands.vllm import vllm
from airloop.errors import AirError, InfraError, Stopped
from airloop.text.keys import note_addresses, print_no_keys
from airloop.text.plain import begin_with_utf8, use_plain_signs
from airloop.threads import set_passive_waiting
from airloop.version import versions

if TYPE_CHECKING:
    pass

BEGAN = time.time()  # a budget of minutes counts what importing takes, too

app = typer.Typer(
    name="air",
    cls=Group,
    context_settings={"max_content_width": WIDEST},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Commands that take a config pass everything they do not know to it: `@ a.toml --trainer.optim.lr 2e-5`.
WITH_CONFIG = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
SkipProofs = Annotated[bool, typer.Option("--skip-proofs", help="Without the doctor's probes and proofs.")]


def main() -> None:
    begin_with_utf8()
    set_passive_waiting()
    interrupts.install_handlers()
    use_plain_signs()
    note_addresses(sys.argv)
    print_no_keys()
    try:
        try:
            interrupts.raise_again(app(prog_name="air", standalone_mode=False))
        finally:
            sys.stdout.flush()  # what was printed is told of here, if it cannot be written
    except AirError as error:
        fail(str(error), interrupts.exit_code() if isinstance(error, Stopped) else 1)
    except InfraError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("stopped.", interrupts.exit_code())
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (typer.Abort, SystemExit):
        raise
    except OSError as error:
        fail_of_system(error)
    except Exception as error:
        if hasattr(error, "format_message"):  # click's own: a wrong option or argument
            where = getattr(error, "ctx", None)
            fail(f"{error.format_message()}\n  see `{where.command_path if where else 'air'} --help`", 2)
        raise


def _version(wanted: bool) -> None:
    if wanted:
        print(versions())
        raise typer.Exit(0)


@app.callback()
def air(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The versions of air, Python and torch.")
    ] = False,
) -> None:
    """Train language-model agents by reinforcement learning."""


def _config(context: typer.Context, help_text: str = "") -> Any:
    from airloop.config import load_config

    if asks_for_help(context.args):
        print_help(help_text, context.args)
    return load_config(context.args)


def _check_environments(config: Any) -> None:
    """What an environment lacks is said before seconds of imports."""
    from airloop.envs.base import find_environment

    for entry in config.orchestrator.env:
        find_environment(entry.id)


def _refuse_at_once(config: Any, resume: Path | None, dry: bool) -> None:
    """Before seconds of imports: no run to go on with, no model at a path, no place for what is made."""
    from airloop.models.sources import refuse_local
    from airloop.os_errors import check_place
    from airloop.runs.run import Run

    if resume is not None:
        Run.open(resume)
        return
    if not dry:
        refuse_local(config.model.name)
        check_place(Path(config.output_dir), "output_dir")


def _unfinished(config: Any) -> Path | None:
    from airloop.runs.run import Run

    return Run.unfinished(config)


TRAIN_HELP = """air train @ a.toml @ b.toml --key value …   (or: air train --resume RUN)

Before the first step the doctor looks at the config, the model's small files and the tasks, then, with the model
loaded, plays a few episodes and proves that training can work; its failures stop the run.

  --minutes M          plan everything into this time, on whatever machine (budget.minutes)
  --resume RUN         go on with a run that was stopped or killed, or start a planned one, with its own config
  --continue           go on with the latest unfinished run of this very config, if there is one
  --skip-proofs        leave out the doctor's episodes and proofs; the run records it
  --dry-run            try it on this CPU: the same processes and parts, two small steps of a tiny model, nothing kept
  --json               print the result as JSON
  --help [KEY]         this; of a section or a key alone (trainer.loss, lr): type, default and what it does

Keys:"""


@app.command(context_settings=WITH_CONFIG)
def train(
    context: typer.Context,
    resume: Annotated[Path | None, typer.Option(help="Go on with a stopped run, or start a planned one.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with an unfinished run of the same config.")] = False,
    skip_proofs: SkipProofs = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Try it on this CPU with a tiny model.")] = False,
    as_json: Json = False,
) -> None:
    """Train: air train @ config.toml [--key value …] or air train --resume RUN."""
    if resume is None and not [word for word in context.args if word != "--"]:
        raise AirError("Nothing says what to train.", "name a config: `air train quickstart`, or `air train @ FILE`.")
    config = _config(context, TRAIN_HELP)
    if resume is not None and context.args:
        raise AirError(
            f"--resume goes on with the run's own config; {' '.join(context.args)} would change it.",
            "leave the other arguments out, or start a new run.",
        )
    if resume is not None and go_on:
        raise AirError("--resume names a run and --continue looks for one.", "give one of them.")
    if dry and (resume is not None or go_on):
        raise AirError("--dry-run tries a config, and --resume and --continue go on with a run.", "give one of them.")
    if resume is None:
        _check_environments(config)
        resume = _unfinished(config) if go_on else None
    _refuse_at_once(config, resume, dry)
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        what = f"going on with {resume}" if resume else f"{config.model.name} learns {config.task}"
        begin(display, f"air train: {what}")
        if dry:
            from airloop.dry_run import dry_run

            tried = dry_run(config, display)
            print_json(tried.facts) if as_json else print(tried.text)
            return
        from airloop.training import start

        finished = start(config, display, resume, skip_proofs, BEGAN)
    if as_json:
        evals = {m["name"]: m for m in finished.run.metrics("eval")}
        print_json({"run": str(finished.run.path), "steps": len(finished.run.metrics("train")), "evaluations": evals})
    else:
        print(finished.text)


@app.command(context_settings=WITH_CONFIG)
def warmstart(context: typer.Context, as_json: Json = False) -> None:
    """Supervised start from demonstrations: air warmstart @ config.toml."""
    config = _config(context, "air warmstart @ a.toml --key value …\n\nKeys:")
    refuse_minutes(context)
    _check_environments(config)

    from airloop.config import WarmstartConfig
    from airloop.watch.display.display import Display

    if config.warmstart is None:
        config = config.model_copy(update={"warmstart": WarmstartConfig()})
    with Display(quiet=as_json) as display:
        begin(display, f"air warmstart: {config.model.name}, demonstrations by {config.warmstart.source!r}")
        from airloop.warmstart import warmstart as run

        path, _ = interrupts.run(run(config, display))
    weights = next(p for p in (path / "adapter", path / "model") if p.is_dir())
    if as_json:
        print_json({"directory": str(path), "weights": str(weights)})
    else:
        print(f"{weights}\nuse it with --model.{'adapter' if weights.name == 'adapter' else 'name'} {weights}")


DOCTOR_HELP = """air doctor @ config.toml [--key value …] [options]

Says whether a run of this config can work and learn, and what to change if not. Exit code: 0 all that was judged
passes, 1 there are warnings, 2 there are failures. What the machine is too slow to show is "not judged".

  --only F1,C4         only checks that answer these lines of docs/failures.md, or have these names
  --skip-proofs        only the fast checks: nothing is loaded, a few seconds
  --gpu-memory SIZE    as in 80GiB: plan for the GPUs of another machine
  --verbose            every check's name, time and evidence
  --json               print the report as JSON

Keys:"""


@app.command("doctor", context_settings=WITH_CONFIG)
def examine_config(
    context: typer.Context,
    only: Annotated[str, typer.Option()] = "",
    skip_proofs: SkipProofs = False,
    gpu_memory: Annotated[str | None, typer.Option()] = None,
    verbose: Annotated[bool, typer.Option("--verbose")] = False,
    as_json: Json = False,
) -> None:
    """Say, before the first GPU hour, whether a run will learn, and why not: air doctor @ config.toml."""
    if asks_for_help(context.args):
        print_help(DOCTOR_HELP, context.args)
    from airloop.doctor.checks.tokens import coloured
    from airloop.doctor.report import as_json as report_json
    from airloop.doctor.report import exit_code, format_report
    from airloop.doctor.run_doctor import run_doctor
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        begin(display, f"air doctor {' '.join(context.args)}".rstrip())
        results = run_doctor(context.args, display, [id for id in only.split(",") if id], skip_proofs, gpu_memory)
    if as_json:
        print_json(report_json(results))
    else:
        text = format_report(results, verbose)
        print(coloured(text) if sys.stdout.isatty() else text)
    sys.exit(exit_code(results))


PLAN_HELP = """air plan @ config.toml [--key value …] [options]

What a run takes of each GPU's memory, from the model's config.json alone; exits with 1 if it does not fit.

  --gpu-memory SIZE    as in 80GiB; default: what the GPU of this machine has
  --json               print the plan as JSON

Keys:"""


@app.command("plan", context_settings=WITH_CONFIG)
def plan_memory(
    context: typer.Context,
    gpu_memory: Annotated[str | None, typer.Option()] = None,
    as_json: Json = False,
) -> None:
    """Say what a run takes of the GPU's memory, and what to change if it does not fit: air plan @ config.toml."""
    config = _config(context, PLAN_HELP)
    refuse_minutes(context)
    from airloop.plan.gpu import gpu_memory as available
    from airloop.plan.model_shape import find_shape
    from airloop.plan.report import make_report
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        display.phase("reading the model's shape")
        size = available(gpu_memory, config.gpu)
        shape = find_shape(config.model.name, context=config.seq_len, say=display.say)
    report = make_report(config, shape, size)
    text = report.pop("text")
    print_json(report) if as_json else print(text)
    sys.exit(0 if report["fits"] else 1)


@app.command()
def compare(
    evaluations: Annotated[
        list[str], typer.Argument(help="Two directories of `air eval` or RUN:before, RUN:after, …; or a RUN.")
    ],
    common: Annotated[bool, typer.Option("--common", help="Compare only the rows that both have.")] = False,
    as_json: Json = False,
) -> None:
    """Compare two evaluations of the same rows, with paired 95 % intervals: air compare A B."""
    from airloop.eval.compare import as_json as comparison_json
    from airloop.eval.compare import compare_named, format_comparison

    comparison = compare_named(evaluations, common)
    print_json(comparison_json(comparison)) if as_json else print(format_comparison(comparison))


@app.command()
def models(as_json: Json = False) -> None:
    """List the models on this machine."""
    import dataclasses

    from airloop.models.listing import list_models

    rows = list_models()
    if as_json:
        print_json([{**dataclasses.asdict(row), "path": row.path and str(row.path)} for row in rows])
        return
    print(f"{'model':46s} {'type':10s} {'size':>9s}  where")
    for row in rows:
        size = f"{row.size / 2**20:.0f} MiB" if row.size else ""
        name = row.name + (" (default)" if row.default else "")
        why_not = "" if row.trainable else f"; cannot be trained: {row.why_not}"
        print(f"{name:46s} {row.type:10s} {size:>9s}  {row.where}{why_not}")


app.add_typer(
    configs, name="configs", cls=Group, help="Configs that come with air: list them, show one, copy one to change it."
)
app.add_typer(env, name="env", cls=Group, help="Environments of other libraries here, and ours for them.")
app.add_typer(log, name="log", cls=Group, help="The logbook: every run with its goal, what changed, what came of it.")
app.add_typer(tasks, name="tasks", cls=Group, help="List environments and their tasks, look at one, try one out.")
app.add_typer(vllm, name="vllm", cls=Group, help="Servers of vLLM on other machines: what they need of air's.")
app.command(context_settings=WITH_CONFIG)(serve)
app.command(context_settings=WITH_CONFIG)(distill)
app.command("eval", context_settings=WITH_CONFIG)(evaluate)
app.command()(export)
app.command()(init)
add_plugins(app, {"env": env, "tasks": tasks, "log": log})

if __name__ == "__main__":
    main()
