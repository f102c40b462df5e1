"""A run's directory appears whole, or not at all."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from support import warm_process

from airloop import locks
from airloop.config import load_config
from airloop.logbook.logbook import find_runs, logbook
from airloop.runs.run import Run

KILLED = """
import os, signal, sys
from pathlib import Path
from airloop.config import load_config
from airloop.runs.run import Run
calls, seen = int(sys.argv[2]), 0
def count(event, arguments):
    global seen
    if event in ("open", "os.mkdir", "os.rename") and sys.argv[1] in str(arguments[0]):
        seen += 1
        if seen > calls:
            os.kill(os.getpid(), signal.SIGKILL)
config = load_config(["--output_dir", sys.argv[1]])
sys.addaudithook(count)
Run.create(config, "tune")
"""


@pytest.mark.long
def test_a_run_that_is_killed_while_it_is_made_is_whole_or_is_not_there(tmp_path: Path) -> None:
    """Before each of its accesses to files, one after the other, until none is left."""
    config = load_config(["--output_dir", str(tmp_path)])
    for calls in range(100):
        process = warm_process.run([tmp_path, calls], code=KILLED)
        runs = [*tmp_path.glob("exp*")]
        assert all(Run.open(path).status()["status"] == "running" for path in runs)
        assert Run.unfinished(config) in (None, *runs)
        if process.returncode == 0:
            break
    assert calls > 5 and Run.unfinished(config) in runs


def test_what_a_killed_process_left_of_a_new_run_is_removed_after_an_hour(tmp_path: Path) -> None:
    config = load_config(["--output_dir", str(tmp_path)])
    old, young, held = (tmp_path / f".new-{name}" for name in ("old", "young", "held"))
    for path in (old, young, held):
        path.mkdir()
    with (held / ".lock").open("w") as handle:
        assert locks.take(handle)
        for path in (old, held):
            os.utime(path, (time.time() - 4000,) * 2)
        Run.create(config, "tune")
    assert [old.exists(), young.exists(), held.exists()] == [False, True, True]


def test_a_run_that_is_being_made_is_in_no_list(tmp_path: Path) -> None:
    run = Run.create(load_config(["--output_dir", str(tmp_path)]), "tune")
    shutil.copytree(run.path, tmp_path / ".new-1-ab")
    assert find_runs(tmp_path) == [run.path] and len(logbook(tmp_path)) == 1
