"""A tool agent of LangGraph, unchanged, is trained on a CPU: from guessing to looking up. The same task in process, an
environment of one file, ends where it does."""

from __future__ import annotations

import json
import random
import shutil
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from support.interop_world import interpreter

from airloop.config import load_config
from airloop.stats.intervals import difference
from airloop.training import Finished, start
from airloop.types import Trajectory
from airloop.watch.display.display import Display

pytestmark = pytest.mark.interop
HELD_OUT = 60
PROGRAM = """
[[orchestrator.env]]
id = "./agent.py:solve"
args.tasks = "train.jsonl"
args.test_tasks = "test.jsonl"
args.python = "PYTHON"
args.max_requests = 3
args.scripts = { demo = "./scripts.py:demo", oracle = "./scripts.py:right" }
"""
IN_PROCESS = """
[[orchestrator.env]]
id = "./in_process.py:Kept"
"""


def rows() -> list[dict[str, Any]]:
    """What is kept under a letter differs from row to row: who guesses is right one time in ten, who looks up and says
    what was found is right always."""
    pairs = permutations("abcdef", 2)
    made = [{"question": f"{a}-{b}", "kept": {a: d}, "answer": d} for a, b in pairs for d in "0123456789"]
    random.Random(0).shuffle(made)
    return made


def learn(folder: Path, env: str) -> Finished:
    shutil.copytree(Path(__file__).with_name("learning"), folder)
    toml = folder / "learn.toml"
    toml.write_text(toml.read_text() + env)
    for name, part in (("test", rows()[:HELD_OUT]), ("train", rows()[HELD_OUT:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    config = load_config(["@", str(toml), "--output_dir", str(folder / "out")])
    done = start(config, Display(quiet=True), skip_proofs=True)
    before, after = ([t.reward for t in episodes] for episodes in (done.outcome.before, done.outcome.after))
    assert len(before) == len(after) == HELD_OUT
    assert mean(before) < 0.4 and mean(after) > 0.8 and difference(after, before).low > 0, done.text
    return done


def row_of(trajectory: Trajectory) -> tuple[str, str]:
    """The two environments give the same row ids of their own."""
    return trajectory.task.payload["question"], trajectory.task.payload["answer"]


def test_an_agent_of_langgraph_learns_to_use_its_tool_as_it_does_in_process(tmp_path: Path) -> None:
    program = learn(tmp_path / "program", PROGRAM.replace("PYTHON", interpreter("langgraph")))
    twin = learn(tmp_path / "twin", IN_PROCESS)
    # Two runs, each with draws of its own: that one ends a little higher is no difference, on the same tasks.
    ends = [{row_of(t): t.reward for t in done.outcome.after} for done in (program, twin)]
    apart = difference([ends[0][row] for row in ends[1]], [ends[1][row] for row in ends[1]], share=True)
    assert apart.low <= 0 <= apart.high, f"{program.text}\n{twin.text}"
    asked = [[t.metrics["requests"] for t in episodes] for episodes in (program.outcome.before, program.outcome.after)]
    assert mean(asked[0]) < 1.5 < mean(asked[1])  # it looks up, and then answers
