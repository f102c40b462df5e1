"""`air export`: a run's weights for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airloop.commands.common import Json, begin, print_json
from airloop.errors import AirError


def export(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    out: Annotated[Path, typer.Option(help="A folder, new or empty; with --gguf also a file NAME.gguf in one.")],
    merged: Annotated[bool, typer.Option("--merged", help="A whole model instead of an adapter.")] = False,
    step: Annotated[str, typer.Option(help="Which checkpoint: last, best, or a step's number.")] = "last",
    dtype: Annotated[str | None, typer.Option(help="Of a whole model; by default the base model's.")] = None,
    gguf: Annotated[bool, typer.Option("--gguf", help="A GGUF file, for llama.cpp and Ollama.")] = False,
    quantize: Annotated[
        str | None, typer.Option(help="Of a GGUF: f32, f16, bf16, q8_0 (default), q5_1, q5_0, q4_1 or q4_0.")
    ] = None,
    push: Annotated[str | None, typer.Option(help="OWNER/NAME: to the hub, after the check has passed.")] = None,
    private: Annotated[bool, typer.Option("--private", help="A repository that --push makes is private.")] = False,
    as_json: Json = False,
) -> None:
    """Write a run's weights for PEFT, transformers or llama.cpp, with a model card, checked by loading them again."""
    if quantize is not None and not gguf:
        raise AirError(f"--quantize {quantize} is of a GGUF file, and none is asked for.", "add --gguf.")
    if private and push is None:
        raise AirError("--private is of a repository on the hub, and none is asked for.", "add --push OWNER/NAME.")
    from airloop.watch.display.display import Display

    with Display(quiet=as_json) as display:
        begin(display, f"air export: {run} to {out}")
        from airloop.export import export as write
        from airloop.export import format_report
        from airloop.export.gguf_file import DEFAULT

        def say(text: str) -> None:
            display.say(text)
            display.phase(text)

        kind = (quantize or DEFAULT).lower() if gguf else None
        report = write(run, out, merged=merged, which=step, dtype=dtype, gguf=kind, push=push, private=private, say=say)
    print_json(report) if as_json else print(format_report(report))
