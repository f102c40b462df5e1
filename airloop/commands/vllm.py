"""`air vllm`: what servers of vLLM on other machines need of ours."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from airloop.commands.common import Json, print_json
from airloop.errors import AirError

vllm = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@vllm.callback()
def servers() -> None:
    """Servers that run elsewhere."""


@vllm.command("plugin")
def write(
    out: Annotated[Path, typer.Option(help="Where to write; must be new or empty.")],
    as_json: Json = False,
) -> None:
    """Write the folder with which a server pulls adapters from a run: air vllm plugin --out DIR."""
    from airloop.engine.vllm.plugin.adapters import KEY
    from airloop.engine.vllm.plugin_folder import write_plugin

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AirError(f"{out} is there already, and not empty.", "name a folder that is new or empty.")
    write_plugin(out)
    if as_json:
        print_json({"directory": str(out)})
        return
    print(
        f"{out}: copy it to the servers' machines and start each with\n"
        f"  PYTHONPATH={shlex.quote(str(out))} {KEY}=… VLLM_ALLOW_RUNTIME_LORA_UPDATING=1\n"
        f"in its environment; the run has the same {KEY} (docs/vllm.md)"
    )
