"""Family G, as the doctor reports it before a run: where it writes, and whether there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.examined import TINY, findings, silent, trouble
from support.tiny_runs import tiny_run, write_config

from airloop.config import Config, load_config
from airloop.doctor.case import Case
from airloop.doctor.checks.running import MORE_CHECKPOINTS, checkpoint_bytes, episode_bytes
from airloop.errors import AirError
from airloop.learn.checkpoints import checkpoints
from airloop.runs.run import Run, read_trajectories
from airloop.training import start
from airloop.watch.display.display import Display


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_G4_checkpoints_that_do_not_fit_are_a_failure_and_episodes_a_warning(small: Path) -> None:
    argv = [*TINY, "--output_dir", str(small / "runs")]
    assert silent([*argv, "--max_steps", "1", "--seq_len", "128"], "G4")
    ids, finding = trouble([*argv, "--max_steps", "50"], "G4")
    assert ids == ("G4",) and finding.verdict == "warn" and "4 MiB free" in finding.seen
    assert "output_dir" in finding.lines
    ids, finding = trouble([*argv, "--trainer.model.lora.rank", "64", "--ckpt.keep_last", "5"], "G4")
    assert (
        ids == ("G4",) and finding.verdict == "fail" and "5 kept, the best, and the one being written" in finding.seen
    )
    assert finding.lines == {"ckpt.keep_last": 1}
    assert not list(small.iterdir())


def test_G4_the_estimate_is_that_of_real_checkpoints_and_episodes() -> None:
    """Within a fifth of what a run wrote, and of episodes not less."""
    run = Run.open(tiny_run())
    kept = (run.path / "checkpoints").iterdir()
    weights = max(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for folder in kept)
    with Case(run.config) as case:
        estimate = checkpoint_bytes(case) / (run.config.ckpt.keep_last + MORE_CHECKPOINTS)
        upper = episode_bytes(case)
    assert 0.8 * weights < estimate < 1.2 * weights
    assert sum(f.stat().st_size for f in run.path.glob("trajectories/*/*.json")) < upper


@pytest.mark.slow
def test_G4_a_run_whose_disk_fills_up_stops_with_a_sentence_and_goes_on_when_there_is_room(small: Path) -> None:
    """On 400 KiB, with a checkpoint at every step; then the same file system has 64 MiB."""
    resize(small, "400k")
    words = ["--ckpt.interval", "1", "--ckpt.keep_last", "9", "--max_steps", "4"]
    config = load_config(["@", str(write_config(small)), *words])
    display = Display(quiet=True)
    said = r"The disk is full: .* could not be written\. Everything written before is whole"
    with pytest.raises(AirError, match=said) as full:
        started(config, display)
    assert "--resume" in full.value.fix
    (path,) = (small / "outputs").glob("exp*")
    steps = [step for step, _ in checkpoints(path / "checkpoints")]
    saved = [t for step in sorted((path / "trajectories").iterdir()) for t in read_trajectories(step)]
    assert saved and 4 not in steps and not list((path / "checkpoints").glob(".*")), "what is there is whole"
    resize(small, "64m")
    run = start(config, display, resume=path, skip_proofs=True).run
    assert run.status()["status"] == "completed" and [m["step"] for m in run.metrics("train")] == [*range(4)]
    kept = {t.id for step in range(4) for t in Run.open(path).finished(step).values()}
    assert {t.id for t in saved} <= kept, "no finished episode was sampled again"


def started(config: Config, display: Display) -> None:
    """Without the check that would have refused the place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airloop.doctor.preflight.look", lambda config, watcher: None)
        start(config, display, skip_proofs=True)


def resize(place: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


def test_G_a_place_that_cannot_be_written() -> None:
    ((ids, finding),) = findings([*TINY, "--output_dir", "/proc/nowhere"], "G-output")
    assert ids == ("G-output",) and finding.verdict == "fail" and "cannot be made" in finding.seen
    assert finding.lines == {"output_dir": "outputs"}
