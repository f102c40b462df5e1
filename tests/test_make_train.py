"""The README's first command on a busy machine: it ends well, whatever it has to leave out. What is judged so has the
machine for itself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.busy import busy_processes
from support.installation import ROOT

from airloop.runs.run import Run
from airloop.watch.display.summary import gains, paired


@pytest.mark.soak
@pytest.mark.alone
def test_the_quickstart_ends_well_beside_eight_busy_processes(tmp_path: Path) -> None:
    """What `make train` runs after its installation, into a log file: half an hour or more."""
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "airloop.cli", "train", "quickstart", "--output_dir", str(tmp_path / "outputs")]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with busy_processes(8), log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=env, timeout=3 * 3600)
    assert done.returncode == 0, log.read_text()[-4000:]
    run = Run.open(next((tmp_path / "outputs").glob("exp*")))
    assert run.status()["status"] == "completed" and len(run.metrics("train")) >= 3
    assert run.status()["proofs"] == "passed" and {m["name"] for m in run.metrics("eval")} >= {"before", "after"}


@pytest.mark.soak
@pytest.mark.alone
def test_the_quickstart_learns_with_sampling_beside_training(tmp_path: Path) -> None:
    """`tune` at staleness 1, one seed, in the minutes that the quickstart has: RL itself helps, over tasks."""
    beside = ["--orchestrator.max_staleness", "1", "--trainer.loss.importance_mode", "mask"]
    command = [sys.executable, "-m", "airloop.cli", "train", "quickstart", "--output_dir", str(tmp_path / "outputs")]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([*command, *beside], capture_output=True, text=True, env=env, timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    run = Run.open(next((tmp_path / "outputs").glob("exp*")))
    assert max(int(age) for line in run.metrics("train") for age in line["ages"]) == 1
    success, *_ = gains(run, *paired(run.evaluation("before"), run.evaluation("after")))
    assert success.name == "improved" and success.gain.low > 0, done.stdout[-2000:]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_what_needs_the_machine_for_itself_is_soaked_with_no_test_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning within minutes was judged beside three other workers, one of which had started eight busy processes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-n", "soak"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    commands = [shlex.split(line) for line in done.stdout.splitlines() if "-m pytest" in line]
    found = [(words[words.index("-n") + 1], words[words.index("-m", 2) + 1]) for words in commands]  # workers, marks
    assert [workers for workers, marks in found if marks.startswith("alone")] == ["0"]
    beside = [marks for workers, marks in found if workers != "0"]
    assert len(beside) == 2 and all("not alone" in marks or "not soak" in marks for marks in beside)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(RuntimeError, match="alone"), busy_processes(8):
        pytest.fail("they were started beside other tests")
