"""G1: whatever a child process has to say reaches the main log, whether it hangs, dies, or is killed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.talk_env import Talk, talking
from support.watched_runs import run_watched

from airloop import waits
from airloop.config import load_config
from airloop.envs.tune import pool as fitting
from airloop.envs.tune.env import measured
from airloop.errors import InfraError
from airloop.runs.run import Run
from airloop.sandbox.base import Image
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.door.doorkeeper import Door
from airloop.training import send_logs_to
from airloop.waits import WAITS, Stall, Watchdog

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: apt-get install bubblewrap")
HANGS = (
    "import sys, time; print('{\"ready\": 1}', flush=True); print('reading table 3', file=sys.stderr); "
    "print('stuck on a lock', file=sys.stderr, flush=True); sys.stdin.readline(); time.sleep(60)"
)
DIES_ONCE = (
    "import os, sys\n"
    "if not os.path.exists({mark!r}):\n"
    "    open({mark!r}, 'w').close()\n"
    "    print('{{\"ready\": 1}}', flush=True); sys.stdin.readline()\n"
    "    sys.stderr.write('MemoryError: 3 GiB asked for'); sys.exit(3)\n"
    "from airloop.envs.tune.worker import main; main()"
)


@pytest.fixture
def main_log(tmp_path: Path) -> Iterator[Path]:
    """log.txt of a run, connected as `air train` connects it."""
    config = load_config(["--output_dir", str(tmp_path / "runs")])
    run = Run.create(config, "children")
    logger = logging.getLogger("airloop")
    kept = logger.handlers, logger.level, logger.propagate
    send_logs_to(run.log, config)
    yield run.path / "log.txt"
    logger.handlers, logger.level, logger.propagate = kept
    run.close()


# --- workers that fit models ------------------------------------------------------------------------------------------


def test_G1_a_hung_child_is_named_with_the_last_lines_of_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COMMAND", [sys.executable, "-c", HANGS])
    monkeypatch.setattr(fitting.SERVER, "cannot", "nothing can be forked here")
    told: list[Stall] = []
    worker = fitting.Worker()
    worker.reply(30)
    until = time.monotonic() + 60
    while "stuck on a lock" not in worker.said() and time.monotonic() < until:
        time.sleep(0.01)  # what it has said is read by a thread
    with Watchdog(told.append, every_s=0.05, quiet_s=0.5), pytest.raises(fitting.WorkerLost) as lost:
        worker.request({"config": "ridge"}, 1.5)
    assert told and told[0].what == "the fit ridge" and told[0].owner == f"fitting worker {worker.pid}"
    assert told[0].lines == ("reading table 3", "stuck on a lock")
    assert "stuck on a lock" in str(lost.value)  # and when it is given up, in the main log


def fit_once(kill: bool = False) -> tuple[dict[str, float], int]:
    """The scores of a fit, and how often a worker had to be replaced. `kill`: the first, by SIGKILL, while it waits."""

    async def work() -> tuple[dict[str, float], int]:
        fits = fitting.FitPool(1, use_cache=False)
        try:
            fits.warm()
            while kill and fits.workers[0] is None:  # noqa: ASYNC110 - a thread starts it
                await asyncio.sleep(0.01)
            if kill and (worker := fits.workers[0]) is not None:
                os.kill(worker.pid, signal.SIGKILL)
            digest = str(measured()["quakes"]["digest"])
            scores = await fits.fit("quakes", 0, {"model": "tree", "depth": 2, "scale": False}, digest)
            return dict(scores), fits.restarts
        finally:
            fits.close()

    return asyncio.run(work())


@pytest.mark.slow
def test_G1_the_last_words_of_a_worker_that_died_are_in_the_main_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main_log: Path
) -> None:
    """Though the fit is done again and the run goes on."""
    code = DIES_ONCE.format(mark=str(tmp_path / "died"))
    monkeypatch.setattr(fitting, "COMMAND", [sys.executable, "-c", code])
    monkeypatch.setattr(fitting.SERVER, "cannot", "nothing can be forked here")
    scores, restarts = fit_once()
    assert set(scores) == {"cv", "valid", "test"} and restarts == 1
    said = main_log.read_text()
    assert (
        "warning: fitting worker" in said and "died (exit code 3); its last output lines:\nMemoryError: 3 GiB" in said
    )


@pytest.mark.slow
def test_G1_a_killed_worker_is_named_in_the_main_log_and_replaced(main_log: Path) -> None:
    scores, _ = fit_once(kill=True)
    assert set(scores) == {"cv", "valid", "test"}
    assert "(exit code -9)" in main_log.read_text()


@pytest.mark.slow
def test_G1_a_worker_that_works_leaves_the_log_alone(main_log: Path) -> None:
    fit_once()
    assert not main_log.exists()


# --- a stall in a run -------------------------------------------------------------------------------------------------


def test_G1_a_stalled_tool_in_a_run_is_an_alarm_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits.Watchdog.__init__, "__defaults__", (WAITS, 0.1, 1.0))
    talk = Talk(lambda number, seed: ({"won": float(seed % 2)}, {}), tool_s=2.5)
    changes = {"warmstart.steps": "0", "max_steps": "1", "orchestrator.eval.num_examples": "1"}
    run, witness, error = run_watched(tmp_path, talking(talk), **changes)
    stalls = witness.of("stall")
    assert error is None and stalls and stalls[0].id == "G1" and stalls[0].severity == "note"
    assert "waiting for the answer to `" in stalls[0].seen and "by environment talk since" in stalls[0].seen
    assert "look at environment talk" in stalls[0].fix and run.alarms()[0]["name"] == "stall"


# --- the door into sandboxes ------------------------------------------------------------------------------------------


def test_G1_the_end_of_a_sandbox_door_is_in_the_error_it_causes(tmp_path: Path) -> None:
    """What it wrote before it ended too, however long ago, and only the end of it."""
    speak = "import os; os.write(2, b'x' * 5000 + b'\\n\\x1b[31mno space left on device\\n')"
    door = Door(tmp_path, "files", sys.executable, rehearsal=speak)
    asyncio.run(door.ask("forget", {"id": "none"}, patience_s=30))
    door.process.kill()
    with pytest.raises(InfraError) as error:
        asyncio.run(door.ask("list", {"id": "x"}, patience_s=5))
    assert "it ended with -9; its last output lines:" in str(error.value)
    assert str(error.value).endswith("?[31mno space left on device") and len(str(error.value)) < 1500
    door.close()


def test_G1_what_a_door_says_as_it_starts_is_in_the_main_log(tmp_path: Path, main_log: Path) -> None:
    silent = Door(tmp_path, "files", sys.executable)
    asyncio.run(silent.ask("forget", {"id": "none"}, patience_s=30))
    silent.close()
    assert not main_log.exists()
    door = Door(tmp_path, "python", sys.executable, preload=["json", "no_such_library"])
    for _ in range(2):
        asyncio.run(door.ask("forget", {"id": "none"}, patience_s=30))
    door.close()
    said = main_log.read_text()
    assert said.count("the sandbox's door 'python' said as it started") == 1
    assert "door: no_such_library cannot be preloaded: No module named 'no_such_library'" in said


@needs_bwrap
def test_G1_a_child_of_the_door_that_dies_says_why_and_a_dead_door_is_replaced(main_log: Path) -> None:
    async def work() -> str:
        backend = Bubblewrap(warm_python=False)
        try:
            sandbox = await backend.start(Image())
            door = backend.door("files")
            await door.ask("forget", {"id": sandbox.name})
            facts = {"id": sandbox.name, "pid": sandbox.first, "groups": ["/nowhere"], "limits": {}, "filter": ""}  # type: ignore[attr-defined]
            await door.ask("register", facts)
            call = {"id": sandbox.name, "cwd": "/", "env": {}, "source": "", "timeout": 5, "limit": 9}
            with pytest.raises(InfraError) as error:  # it cannot join a control group that is not there
                await door.ask("call", call)
            os.write(door.errors.fileno(), b"killed by the kernel, perhaps\n")
            door.process.kill()
            door.process.wait()
            assert backend.door("files").alive
            return str(error.value)
        finally:
            await backend.close()

    said = asyncio.run(work())
    assert "gave no answer to 'call'; its last output lines:\ndoor: FileNotFoundError" in said and "/nowhere" in said
    log = main_log.read_text()
    assert "door 'files' ended with -9; another is started; its last output lines:" in log
    assert "killed by the kernel, perhaps" in log
