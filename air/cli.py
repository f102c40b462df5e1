"""The `air` command: parse, call, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from air.errors import AirError

app = typer.Typer(
    name="air",
    help="Train language-model agents by reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Commands that take a config pass everything they do not know to it: `@ a.toml --trainer.optim.lr 2e-5`.
WITH_CONFIG = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> None:
    try:
        app(standalone_mode=False)
    except AirError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("stopped. Everything sampled so far is saved; go on with `air train --resume RUN`.", 130)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (typer.Abort, SystemExit):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # click's own: a wrong option or argument
            _fail(f"{error.format_message()}\n  see `air --help`", 2)
        raise


def _fail(text: str, code: int) -> None:
    print(f"air: {text}", file=sys.stderr)
    sys.exit(code)


def _config(context: typer.Context, help_text: str = "") -> Any:
    from air.config import format_keys, load_config

    if "--help" in context.args or "-h" in context.args:
        print(help_text + "\n\n" + format_keys())
        raise typer.Exit(0)
    return load_config(context.args)


def _print(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


@app.command(context_settings=WITH_CONFIG)
def train(
    context: typer.Context,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run that was stopped or killed.")] = None,
    as_json: Json = False,
) -> None:
    """Train: air train @ config.toml [--key value …] or air train --resume RUN."""
    config = _config(context, "air train @ a.toml @ b.toml --key value …   (or: air train --resume RUN)\n\nKeys:")
    if resume is not None and context.args:
        raise AirError(
            f"--resume goes on with the run's own config; {' '.join(context.args)} would change it.",
            "leave the other arguments out, or start a new run.",
        )
    from air.train import start
    from air.watch.display import Display

    with Display(quiet=as_json) as display:
        finished = start(config, display, resume)
    if as_json:
        evals = {m["name"]: m for m in finished.run.metrics("eval")}
        _print({"run": str(finished.run.path), "steps": len(finished.run.metrics("train")), "evaluations": evals})
    else:
        print(finished.text)


@app.command(context_settings=WITH_CONFIG)
def warmstart(context: typer.Context, as_json: Json = False) -> None:
    """Supervised start from demonstrations: air warmstart @ config.toml."""
    config = _config(context, "air warmstart @ a.toml --key value …\n\nKeys:")
    import asyncio

    from air.config import WarmstartConfig
    from air.warmstart import warmstart as run
    from air.watch.display import Display

    if config.warmstart is None:
        config = config.model_copy(update={"warmstart": WarmstartConfig()})
    with Display(quiet=as_json) as display:
        path = asyncio.run(run(config, display))
    weights = next(p for p in (path / "adapter", path / "model") if p.is_dir())
    if as_json:
        _print({"directory": str(path), "weights": str(weights)})
    else:
        print(f"{weights}\nuse it with --model.{'adapter' if weights.name == 'adapter' else 'name'} {weights}")


if __name__ == "__main__":
    main()
