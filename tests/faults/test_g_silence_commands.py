"""G11, command by command: each of these tells how far it is in a pipe. The work waits, so that lines are due."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import WARMSTART, write_config

from airloop.envs.arith import Adder
from airloop.learn.learner import Learner
from airloop.runs.run import Run
from airloop.watch.display import heartbeat
from airloop.watch.display.phase import Phase
from airloop_lab.hypothesis_process import Workers

PATIENCE_S = 120.0
Told = Callable[[str], bool]  # whether a line was told that fits


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Heartbeats that come soon, and what they have said so far."""
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.1)
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.2)
    lines: list[str] = []
    line = Phase.line
    monkeypatch.setattr(Phase, "line", lambda phase: (lines.append(line(phase)), lines[-1])[1])
    return lambda pattern: any(re.search(pattern, text) for text in lines)


def wait_for(told: Told, pattern: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not told(pattern):
        assert time.monotonic() < until, pattern
        time.sleep(0.01)


def test_G11_an_evaluation_by_itself(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, air: Any) -> None:
    reply, played = Adder.reply, list[None]()
    line = r"^evaluating demo on test [1-7]/8, \d+ (s|min) left$"

    async def slow(self: Adder, *args: Any) -> Any:
        played.append(None)
        if len(played) == 4:
            await asyncio.to_thread(wait_for, told, line)
        return await reply(self, *args)

    monkeypatch.setattr(Adder, "reply", slow)
    words = ["arith", "--agent", "scripted:demo", "--n", 8, "--rollouts", 1, "--orchestrator.max_concurrent", 1]
    code, _, said = air("eval", *words, "--out", tmp_path / "out")
    assert code == 0 and said.startswith("air eval: scripted:demo\n")
    assert re.search(line, said, re.MULTILINE), said


@pytest.mark.long
def test_G11_a_supervised_start_by_itself(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, air: Any
) -> None:
    update, made = Learner.update, list[None]()
    line = r"^supervised start [1-5]/6, loss \d+\.\d+, \d+ (s|min) left$"

    def slow(self: Learner, *args: Any) -> Any:
        made.append(None)
        if len(made) == 3:
            wait_for(told, line)
        return update(self, *args)

    monkeypatch.setattr(Learner, "update", slow)
    code, _, said = air("warmstart", "@", write_config(tmp_path, extra=WARMSTART))
    assert code == 0 and said.startswith("air warmstart: ")
    assert re.search(line, said, re.MULTILINE), said


class Worked:
    """A run's process that ends, its run complete, once it was told of."""

    def __init__(self, run: Path, told: Told) -> None:
        self._run, self._told = Run.open(run), told

    def ended(self) -> bool:
        if self._told(r"run 1 of 2, 34 s left"):
            self._run.set_status("completed")
            return True
        return False

    def end(self, wait_s: float = 0.0) -> None: ...

    def ask_to_stop(self) -> None: ...


@pytest.mark.slow
def test_G11_the_runs_of_a_hypothesis(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, air: Any) -> None:
    """What the run that was started last says is passed on; the time of those that are complete tells what is left."""

    def start(self: Workers, run: Path, environment: Mapping[str, str]) -> Worked:
        (run / "output.txt").write_text("run 1 of 2, 34 s left\n")
        return Worked(run, told)

    monkeypatch.setattr(Workers, "prepare", lambda self: None)
    monkeypatch.setattr(Workers, "start", start)
    _, _, said = air("lab", "run", "mask", "--seeds", "0", "--out", tmp_path / "lab")
    assert said.startswith("air lab run: mask, seeds 0\n")
    assert re.search(r"^0 of \d+ runs complete; under way: seed 0, .*: run 1 of 2, 34 s left$", said, re.MULTILINE), (
        said
    )
    assert told(r"^1 of \d+ runs complete; about \d+ s left; under way: seed 0, "), said


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_G11_a_research_task_tried_out(told: Told, air: Any) -> None:
    code, _, said = air("tasks", "check", "prisonersDilemma")
    assert code == 0 and said.startswith("air tasks check: prisonersDilemma\n")
    assert re.search(r"^running the baseline.*, \d+ s so far$", said, re.MULTILINE), said
