"""Runs of a tiny model on `arith`, made once per process and only read by the tests."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from airloop.config import load_config
from airloop.training import start
from airloop.watch.display.display import Display

CONFIG = """\
max_steps = 2
seq_len = 128
output_dir = "OUT"
[model]
name = "tiny:llama"
[trainer.model]
train = "TRAIN"
[trainer.optim]
lr = 1e-2
[orchestrator]
batch_size = 8
rollouts_per_example = 4
[orchestrator.sampling]
max_tokens = 4
[orchestrator.eval]
interval = 1
num_examples = 8
[[orchestrator.env]]
id = "arith"
"""
WARMSTART = """\
[warmstart]
steps = 6
lr = 2e-2
episodes = 32
batch_size = 8
"""


def write_config(directory: Path, train: str = "lora", extra: str = "") -> Path:
    """A config whose runs and evaluations go to `directory`."""
    path = directory / "config.toml"
    path.write_text(CONFIG.replace("OUT", str(directory / "outputs")).replace("TRAIN", train) + extra)
    return path


@functools.cache
def tiny_run(train: str = "lora") -> Path:
    """Two steps after a supervised start, which makes sure that the weights have changed."""
    directory = Path(tempfile.mkdtemp(prefix="air-tiny-run-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    extra = WARMSTART if train == "lora" else ""
    config = load_config(["@", str(write_config(directory, train, extra))])
    return start(config, Display(quiet=True), skip_proofs=True).run.path
