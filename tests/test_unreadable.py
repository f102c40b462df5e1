"""What the system refuses of a file ends a command in a sentence with the file's name, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ordinary_user import modes_bind

from airloop.errors import AirError
from airloop.os_errors import check_place, refusal

RUN = "runs/exp1.0-arith-1119"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Files and folders that may not be read or entered, a folder that may not be written to, and a plain file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "status.json").write_text(json.dumps({"status": "completed"}))
    for name in ("shut.toml", "shut.py", "shut.jsonl", f"{RUN}/config.toml", "file"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o000)
    (tmp_path / "file").chmod(0o644)
    for name, mode in (("closed", 0o000), ("fixed", 0o555)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    with modes_bind():
        yield tmp_path
    for name in ("closed", "fixed"):
        (tmp_path / name).chmod(0o755)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("train @ shut.toml", "chmod u+r {}/shut.toml"),
        ("plan ./shut.toml", "chmod u+r {}/shut.toml"),
        ("warmstart @ closed/a.toml", "chmod u+x {}/closed"),
        ("tasks show ./shut.py:MyEnv", "chmod u+r {}/shut.py"),
        ("tasks show gsm8k --arg dataset=shut.jsonl", "chmod u+r {}/shut.jsonl"),
        ("lab run shut.toml", "chmod u+r {}/shut.toml"),
        (f"export {RUN} --out new", f"chmod u+r {{}}/{RUN}/config.toml"),
        (f"eval --agent run:{RUN}", f"chmod u+r {{}}/{RUN}/config.toml"),
        ("configs copy arith fixed", "chmod u+w {}/fixed"),
        ("configs copy arith file/a.toml", "name a place in a folder"),
        ("eval arith --agent scripted:oracle --n 1 --output_dir file", "name a place in a folder"),
        ("eval arith --agent scripted:oracle --n 1 --out file", "give another --out"),
        ("eval arith --agent scripted:oracle --n 1 --out fixed/x", "chmod u+w {}/fixed"),
        ("init closed/x", "chmod u+x {}/closed"),
        ("init file", "name another place"),
        ("log export --dir runs --out closed/x", "chmod u+x {}/closed"),
        (f"train @ {'x' * 300}", "shorten it"),
    ],
)
def test_what_may_not_be_read_or_written_is_said(air: Any, place: Path, words: str, fix: str) -> None:
    code, _, problem = air(*words.split())
    assert code == 1 and fix.format(place) in problem, problem


def test_a_run_whose_config_may_not_be_read_is_listed(air: Any, place: Path) -> None:
    code, text, _ = air("log", "list", "--dir", "runs")
    assert code == 0 and "exp1.0-arith-1119" in text and "config.toml cannot be read: Permission denied" in text


def test_a_folder_that_is_gone_is_said(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, problem = air("plan", "arith")
    assert code == 1 and "is not there any more" in problem and "Traceback" not in problem


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_said() -> None:
    command = [sys.executable, "-m", "airloop.cli", "configs", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("air: What was to be written could not be: No space left")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_nobody_who_listens_is_no_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "airloop.cli", "--version"]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert done.returncode == 1 and done.stderr == ""


def test_a_place_is_tried_and_left_as_it_was(place: Path) -> None:
    check_place(place / "a" / "b", "x")
    assert not (place / "a").exists()
    with pytest.raises(AirError, match="file is a file, not a folder"):
        check_place(place / "file", "output_dir")
    with pytest.raises(AirError, match="place that can be written to"):
        check_place(Path("/proc/x"), "output_dir")
    assert "read-only" in str(refusal(OSError(30, "Read-only file system", "/x/y")))
    assert "disk is full" in str(refusal(OSError(28, "No space left on device", "/x/y")))
    assert "is a folder" in str(refusal(OSError(21, "Is a directory", "/x/y")))
