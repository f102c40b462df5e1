"""A run that is killed before its first step, again and again: it goes on, and repeats nothing that was finished."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from support import warm_process
from support.killed_runs import FLAGS, first_difference, what_happened

from airloop.runs.run import Run

# `air train`, which writes down what it finishes, and is killed when it has finished so many of one thing. Every
# supervised step is kept, and rewards are such that the doctor has something to see.
KILLED = """
import os, signal, sys
from collections import Counter
from contextlib import contextmanager
import pytest
from support.probe_cases import chance, graded
from airloop import cli, interrupts, start_checkpoint, training
from airloop.budget import Budget
from airloop.doctor import preflight
from airloop.runs.run import Run
from airloop.start_checkpoint import StartCheckpoint

where, count, book = sys.argv.pop(1), int(sys.argv.pop(1)), open(sys.argv.pop(1), "a")
seen = Counter()

def finished(what, which=""):
    book.write(f"{what} {which}\\n")
    book.flush()
    seen[what] += 1
    if what == where and seen[what] == count:
        os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name, what, which=lambda *_: ""):
    real = getattr(owner, name)
    def wrapped(self, *given):
        real(self, *given)
        finished(what, which(*given))
    setattr(owner, name, wrapped)

after(StartCheckpoint, "keep", "demonstration", lambda t: t.id.rpartition("_")[2])
after(StartCheckpoint, "save", "kept", lambda learner, progress, say: len(progress.metrics))
after(Run, "save_evaluation", "evaluated", lambda t, name: f"{name} {t.task.id} {t.seed}")
start_checkpoint.EVERY_S = start_checkpoint.SHARE = 0.0
graded(pytest.MonkeyPatch(), lambda text: {"correct": chance(text)})
training._plot = lambda *_: "left out"

finishing, plan, examine = interrupts.finishing, Budget.plan, preflight.examine

@contextmanager
def told(what):
    with finishing(what):
        yield
    if what == "a supervised update":
        finished("update")

async def planned(self, *given):
    found = await plan(self, *given)
    finished("plan")
    return found

def examined(case, stages, watch):
    def tell(text):
        if "probe" in stages:
            finished("check", text)
        watch(text)
    return examine(case, stages, watch=tell)

interrupts.finishing, Budget.plan, preflight.examine = told, planned, examined
cli.main()
"""
# What is killed when it has finished how many of what, one after the other.
DEATHS = [("demonstration", 5), ("kept", 2), ("kept", 1), ("check", 4), ("evaluated", 2)]


def train_killed(directory: Path, *words: str) -> tuple[Run, Counter[str]]:
    """The run, when it has ended in spite of all, and how often each thing was finished."""
    book = directory / "book.txt"
    for where, count in [*DEATHS, ("nothing", 0)]:
        done = warm_process.run([where, count, book, "train", "--continue", *words], code=KILLED)
        assert done.returncode == (0 if where == "nothing" else -signal.SIGKILL), done.stderr[-3000:]
    (path,) = (directory / "out").glob("exp*")
    assert not (path / "warmstart").exists()
    return Run.open(path), Counter(book.read_text().splitlines())


def flags(directory: Path, **changes: str) -> list[str]:
    settings = {**FLAGS, "warmstart.steps": "6", "warmstart.episodes": "16", "max_steps": "2", **changes}
    settings |= {"orchestrator.eval.num_examples": "4", "output_dir": str(directory / "out")}
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


def repeated(finished: Counter[str]) -> list[str]:
    """More than once, but for the doctor's checks: one that is killed begins anew."""
    once = {line: n for line, n in finished.items() if not line.startswith(("check ", "update"))}
    return [line for line, n in once.items() if n > 1]


@pytest.mark.long
def test_G2_a_run_with_a_budget_that_is_killed_before_its_first_step_repeats_nothing(tmp_path: Path) -> None:
    run, finished = train_killed(tmp_path, *flags(tmp_path, deterministic="false"), "--minutes", "30")
    assert repeated(finished) == [] and finished["plan "] == 1
    assert finished["update "] == 6 and len(run.metrics("train")) == 2
    assert sum(line.startswith("demonstration") for line in finished) == 16
    assert sum(line.startswith("evaluated before") for line in finished) == 4
    assert run.status()["proofs"] == "passed" and len(run.status()["sessions"]) == len(DEATHS) + 1
    assert "changes" not in run.status()["budget"] and "planned" not in run.status()["budget"]


@pytest.mark.long
def test_G2_a_run_that_is_killed_before_its_first_step_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    words = flags(tmp_path)
    run, finished = train_killed(tmp_path, *words)
    assert repeated(finished) == [] and finished["update "] == 6
    whole = warm_process.run(["nothing", 0, tmp_path / "whole.txt", "train", *flags(tmp_path / "whole")], code=KILLED)
    assert whole.returncode == 0, whole.stderr[-3000:]
    (path,) = (tmp_path / "whole" / "out").glob("exp*")
    assert first_difference(run, what_happened(Run.open(path))) is None
