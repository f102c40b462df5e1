"""Exporting a run: written, loaded again and compared, described. What does not agree is not left behind."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airloop.errors import AirError
from airloop.eval.trained import Checkpoint, choose_checkpoint
from airloop.events import Say
from airloop.export import hub
from airloop.export.base import base_name, hub_id, licence_of, plain_base, saved_dtype, short_name
from airloop.export.card import write_card
from airloop.export.check import (
    NOISE,
    TOLERANCES,
    Check,
    Reference,
    check_rows,
    check_tokenizer,
    judge,
    reloaded_logprobs,
    trained_logprobs,
)
from airloop.export.gguf_file import (
    KINDS,
    About,
    check_architecture,
    check_kind,
    write_gguf,
    write_modelfile,
)
from airloop.export.weights import whole_model, write_adapter, write_whole
from airloop.files import whole_directory, write_json
from airloop.runs.run import Run
from airloop.version import __version__

if TYPE_CHECKING:
    from airloop.learn.batches import Row
    from airloop.models.loaded import Loaded

DTYPES = frozenset(TOLERANCES) - {"adapter", *KINDS}


@dataclass(frozen=True)
class Asked:
    """`kind` says how weights are kept; None: a whole model's as in the base model. `file`: the name of a GGUF."""

    form: Literal["adapter", "model", "gguf"]
    kind: str | None
    out: Path
    file: str = ""


def export(
    path: Path,
    out: Path,
    *,
    merged: bool = False,
    which: str = "last",
    dtype: str | None = None,
    gguf: str | None = None,
    push: str | None = None,
    private: bool = False,
    say: Say,
) -> dict[str, Any]:
    """`gguf`: a GGUF file with weights of this kind. `push`: as OWNER/NAME, where a checked export goes on the hub."""
    run = Run.open(path)
    checkpoint = choose_checkpoint(run, which)
    asked = _asked(run, checkpoint, out, merged, dtype, gguf)
    if push is not None:
        hub.check_ready(push)
    rows = check_rows(run)
    say(f"{run.name}, step {checkpoint.step}: log-probs of the trained policy")
    loaded, reference = trained_logprobs(run.config, checkpoint, rows, say)
    if push is not None and asked.form == "adapter":
        hub.check_base(base_name(loaded))
    with plain_base(loaded) as base, whole_directory(asked.out) as beside:
        say(f"writing {_words(asked)}")
        kind = _write(beside, asked, base, checkpoint, loaded, run)
        say("loading it again, and comparing")
        check = _compare(beside, asked, kind, base, loaded, rows, reference)
        report = _report(run, checkpoint, asked, kind, loaded, check)
        write_json(beside / "export.json", report)
        write_card(beside, run, report, licence_of(loaded.path))
    report["directory"] = str(asked.out)
    if push is not None:
        say(f"pushing it to {push}")
        report["url"] = hub.push(asked.out, push, private)
    return report


def _asked(run: Run, checkpoint: Checkpoint, out: Path, merged: bool, dtype: str | None, gguf: str | None) -> Asked:
    """Whatever cannot be is refused here, before a model is loaded."""
    out = out.expanduser().resolve()
    if gguf is not None:
        if merged or dtype is not None:
            raise AirError("A GGUF is always a whole model.", "leave --merged and --dtype out; see --quantize.")
        check_kind(gguf)
        from airloop.models.sources import find_config

        check_architecture(find_config(run.config.model.name), run.config.model.name)
        named = out.suffix == ".gguf"
        file = out.name if named else f"{short_name(run.config.model.name)}-{run.name}-{gguf.upper()}.gguf"
        asked = Asked("gguf", gguf, out.parent if named else out, file)
    else:
        whole = merged or checkpoint.adapter is None
        if dtype is not None and (not whole or dtype not in DTYPES):
            problem = "there is no such dtype here" if whole else "an adapter is always saved in float32"
            raise AirError(f"--dtype {dtype}: {problem}.", "with --merged: float32, bfloat16 or float16.")
        asked = Asked("model", dtype, out) if whole else Asked("adapter", "adapter", out)
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise AirError(f"{asked.out} is not empty.", "give another --out, a folder of its own: nothing is overwritten.")
    return asked


def _words(asked: Asked) -> str:
    return {"adapter": "the adapter", "model": "the whole model", "gguf": f"{asked.file} ({asked.kind})"}[asked.form]


def _write(directory: Path, asked: Asked, base: Path, checkpoint: Checkpoint, loaded: Loaded, run: Run) -> str:
    """The kind that the weights are of."""
    if asked.form == "adapter":
        write_adapter(directory, checkpoint.path / "adapter", base_name(loaded))
        return "adapter"
    if asked.form == "model":
        dtype = asked.kind or saved_dtype(base if checkpoint.adapter else checkpoint.path / "model", DTYPES)
        write_whole(directory, base, checkpoint, dtype, loaded)
        return dtype
    assert asked.kind is not None
    name = short_name(run.config.model.name)
    told = f"{name} after {checkpoint.step} steps of reinforcement learning on {run.config.task}, by air {__version__}"
    about = About(f"{name} {run.name}", told, name, licence_of(loaded.path))
    write_gguf(directory / asked.file, whole_model(base, checkpoint), loaded.tokenizer, asked.kind, about)
    write_modelfile(directory, asked.file, run.config.seq_len)
    return asked.kind


def _compare(
    directory: Path, asked: Asked, kind: str, base: Path, loaded: Loaded, rows: Sequence[Row], reference: Reference
) -> Check:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".air-export-") as scratch:
        again = _converted(directory / asked.file, Path(scratch)) if asked.form == "gguf" else directory
        found = reloaded_logprobs(again, base if asked.form == "adapter" else None, rows)
        check = judge(found, reference, TOLERANCES[kind])
        if asked.form != "adapter":
            check_tokenizer(again, loaded, rows)
        return check


def _converted(file: Path, scratch: Path) -> Path:
    """As `--model.name FILE.gguf` would read it, with every bit of it."""
    from airloop.models.gguf import Conversion, convert

    made = convert(file, Conversion(scratch / "again"), name=file.name, say=lambda _: None, dtype="float32")
    return made.path


def _report(run: Run, checkpoint: Checkpoint, asked: Asked, kind: str, loaded: Loaded, check: Check) -> dict[str, Any]:
    return {
        "run": run.name,
        "step": checkpoint.step,
        "model": hub_id(run.config.model.name) or short_name(run.config.model.name),
        "form": asked.form,
        "file": asked.file or None,
        "base": base_name(loaded) if asked.form == "adapter" else None,
        "dtype": "float32" if kind == "adapter" else kind,
        "check": asdict(check),
        "air_version": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def format_report(report: dict[str, Any]) -> str:
    check = report["check"]
    limit = check["tolerance"]
    where = Path(report["directory"]) / (report["file"] or "")
    lines = [
        f"{report['form']} of step {report['step']} in {report['dtype']}: {where}",
        f"loaded again and compared on {check['tokens']} tokens: log-probs differ by {check['mean']:.2g} "
        f"on average, {check['max']:.2g} at most",
        f"  allowed: {limit['mean']:g} and {limit['max']:g} ({limit['why']}); training changed them by "
        f"{check['training']:.2g}",
    ]
    if report["base"]:
        lines.append(f"the adapter belongs on {report['base']}")
    if check["training"] <= NOISE:
        lines.append("note: training changed nothing that can be measured: this is the base model")
    elif check["mean"] > 0.1 * check["training"]:
        share = check["mean"] / check["training"]
        finer = "--quantize q8_0 or f16" if report["form"] == "gguf" else "--dtype float32"
        lines.append(
            f"note: rounding moves log-probs by {share:.0%} of what training changed, of which {check['carried']:.0%} "
            f"is in it; {finer} keeps more"
        )
    if url := report.get("url"):
        lines.append(f"pushed: {url}")
    return "\n".join(lines)
