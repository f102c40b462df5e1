"""A run that logs to every sink, made once per process and only read by the tests, and readers of what sinks write."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from support.tiny_runs import WARMSTART, write_config

from airloop.config import load_config
from airloop.training import start
from airloop.watch.display.display import Display

# A KL term has names of its own, and with it every token is trained.
FLAGS = ["--trainer.loss.kl_beta", "0.01"]
WANDB = 'entity = "team"\ngroup = "sums"\ntags = ["one", "two"]\nnotes = "why"\nartifacts = true\n'
BLOCK = 32768  # bytes: W&B's files are logs in LevelDB's form


@functools.cache
def logged_run() -> tuple[Path, str]:
    """Two steps with W&B, offline as there is no key, and TensorBoard; and what was said on the way."""
    directory = Path(tempfile.mkdtemp(prefix="air-logged-run-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    sections = f'[wandb]\nproject = "test"\nsamples = 2\n{WANDB}[tensorboard]\nsamples = 2\n'
    config = load_config(["@", str(write_config(directory, extra=WARMSTART + sections)), *FLAGS])
    kept = {name: os.environ.pop(name, None) for name in ("WANDB_API_KEY", "WANDB_MODE")}
    before, os.environ["NETRC"] = os.environ.get("NETRC"), str(directory / "none")
    try:
        said = directory / "said.txt"
        with said.open("w") as file:
            run = start(config, Display(Console(file=file, width=200)), skip_proofs=True).run
    finally:
        os.environ.pop("NETRC")
        os.environ |= {k: v for k, v in {**kept, "NETRC": before}.items() if v is not None}
    return run.path, said.read_text()


def wandb_records(run: Path) -> Iterator[Any]:
    """W&B's own records, as its file holds them."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    data = path.read_bytes()
    place, parts = 7, b""  # after the file's own header
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # no room for a header: padded
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or a last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wandb_history(run: Path) -> list[dict[str, Any]]:
    """What was logged, call by call."""
    found = []
    for record in wandb_records(run):
        if record.WhichOneof("record_type") == "history":
            call: dict[str, Any] = {}
            for item in record.history.item:
                # A table's parts are kept under its own name, one more key each.
                name, *part = [item.key] if item.key else item.nested_key
                value = json.loads(item.value_json)
                call |= {name: call.get(name, {}) | {part[0]: value}} if part else {name: value}
            found.append(call)
    return found


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's own reading of its event files: of each name its steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def texts(run: Path) -> dict[str, list[str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return {
        name.removesuffix("/text_summary"): [e.tensor_proto.string_val[0].decode() for e in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }
