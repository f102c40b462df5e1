"""Runs that learn on environments of verifiers, unmodified: one of each of its interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.interop_world import PROGRAMS, interpreter
from support.verifiers_world import CHAT, OURS, theirs

from airloop.config import load_config
from airloop.config.toml import toml_value
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display

pytestmark = pytest.mark.interop
CONFIG = """\
max_steps = STEPS
seq_len = LENGTH
output_dir = "out"
[model]
name = "tiny:llama"
[trainer.model]
train = "full"
[trainer.optim]
lr = 2e-3
[orchestrator]
batch_size = BATCH
rollouts_per_example = 8
max_concurrent = BATCH
[orchestrator.sampling]
max_tokens = 16
[orchestrator.eval]
num_examples = 100
test_split = "SPLIT"
[inference]
max_batch = BATCH
[[orchestrator.env]]
id = "verifiers:FILE"
args = ARGS
"""
WARMSTART = """\
[warmstart]
steps = 80
episodes = 160
batch_size = 40
lr = 3e-3
"""


def learn(folder: Path, file: Path, args: dict[str, Any], more: str = "", **settings: Any) -> tuple[Any, Any]:
    """Success on held-out tasks before and after, with its interval."""
    text = CONFIG.replace("FILE", str(file)).replace("ARGS", toml_value(args)) + more
    for name, value in settings.items():
        text = text.replace(name, str(value))
    (folder / "run.toml").write_text(text)
    config = load_config(["@", str(folder / "run.toml"), "--output_dir", str(folder / "out")])
    done = start(config, Display(quiet=True), skip_proofs=True)
    evaluations = {m["name"]: m for m in Run.open(done.run.path).metrics("eval")}
    before, after = (evaluations[name]["success"] for name in ("before", "after"))
    print(f"{file.stem}: {told(before)} before, {told(after)} after, on {after['tasks']} held-out tasks")
    return before, after


def told(found: Any) -> str:
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def test_a_run_learns_on_an_environment_of_the_first_interface(tmp_path: Path) -> None:
    """How often a letter is in a text: reasoning-gym by the library's own adapter, after a start that says numbers."""
    args = {
        "python": interpreter("verifiers-v0"),
        "success": "check_answer_reward_func",
        "count": 400,
        "held_out": 100,
        "gym": "letter_counting",
        "config": {"min_words": 2, "max_words": 3},
        "scripts": {"demo": f"{PROGRAMS / 'counts.py'}:demo"},
    }
    before, after = learn(tmp_path, OURS / "gym_v0.py", args, WARMSTART, SPLIT="test", STEPS=16, LENGTH=256, BATCH=64)
    assert after["low"] > before["high"] and after["mean"] > 0.6


def test_a_run_learns_on_an_environment_of_the_second_interface(tmp_path: Path) -> None:
    """A phrase to repeat, from the library's own source: letters among signs that do not count."""
    marks = "!?.,;:-+*/()[]{}<>="
    phrases = [f"{left}{letter}{right}" for letter in "ab" for left in marks[:10] for right in marks[10:]]
    args = {
        "python": interpreter("verifiers-v1"),
        "success": "echoed",
        "eval_share": 0.4,
        "taskset": {"phrases": phrases},
        **CHAT,
    }
    before, after = learn(tmp_path, theirs("echo_v1"), args, SPLIT="eval", STEPS=16, LENGTH=320, BATCH=64)
    assert after["low"] > before["high"] and after["mean"] > 0.6
