"""Machines that are not as one would wish: a home that cannot be written to, one core, little memory, no UTF-8."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.installation import ROOT

from airloop import files
from airloop.errors import AirError
from airloop.text.plain import SIGNS

SHORT = ["--max_steps", "2", "--warmstart.steps", "5", "--orchestrator.eval.num_examples", "2", "--skip-proofs"]
SHORT += ["--orchestrator.batch_size", "16", "--orchestrator.eval.rollouts_per_example", "1"]
# Commands one after the other, a form feed after each.
SEVERAL = """
import sys
from airloop.cli import main
for words in {commands}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    print("\f", end="")
"""


def air(*words: str, cwd: Path, front: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
    program = words if words[0] == "-c" else ("-m", "airloop.cli", *words)
    command = [*front, sys.executable, *program]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, timeout=300, check=False)


def status(outputs: Path) -> str:
    made = next(outputs.glob("exp*"))
    return str(json.loads((made / "status.json").read_text(encoding="utf-8"))["status"])


def small_machine() -> tuple[str, ...]:
    """One core and 4 GiB. prlimit counts addresses, not memory in use: stricter than a machine of 4 GiB is."""
    if shutil.which("taskset") is None or shutil.which("prlimit") is None:
        return ()
    return ("taskset", "-c", str(min(os.sched_getaffinity(0))), "prlimit", f"--as={4 << 30}")


@pytest.mark.long
def test_one_core_4_gib_and_a_locale_without_utf8(tmp_path: Path) -> None:
    """A whole run and what is asked of it afterwards, with a name that ASCII does not have."""
    folder = tmp_path / "Läufe ✓"
    folder.mkdir()
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    words = ["train", "arith", *SHORT, "--logbook.goal", "größer → besser"]
    done = air(*words, cwd=folder, front=small_machine(), **plain)
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"->" in done.stdout and done.stdout.isascii() and done.stderr.isascii()
    assert status(folder / "outputs") == "completed"
    commands = ["log list", "log show 1.0", "tasks list", "view --text", "configs list", "log list --json"]
    done = air("-c", SEVERAL.format(commands=[words.split() for words in commands]), cwd=folder, **plain)
    assert done.returncode == 0 and done.stdout.isascii(), done.stderr[-2000:]
    *said, _ = done.stdout.split(b"\f")
    assert len(said) == len(commands) and all(said)
    assert "größer → besser" in json.dumps(json.loads(said[-1]), ensure_ascii=False)


def test_signs_have_an_ascii_form_of_their_own(tmp_path: Path) -> None:
    assert all(len(sign) == 1 and form.isascii() for sign, form in SIGNS.items())
    done = air("train", "ärith", cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 1 and b"\\u00e4rith" in done.stderr and b"did you mean arith?" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a read-only home needs bubblewrap")
def test_a_read_only_home(tmp_path: Path) -> None:
    """Only the working directory, here the temporary one too, can be written: the cache goes there and says so."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    front = tuple(f"bwrap --ro-bind / / --dev-bind /dev /dev --proc /proc --bind {here} {here}".split())
    more = {"HOME": str(home), "TMPDIR": str(here), "AIR_CACHE": "", "XDG_CACHE_HOME": ""}
    quick = ["--model.name", "tiny:llama", "--seq_len", "1000", "--trainer.token_budget", "1200", "--n", "1"]
    config = here / "a.toml"
    config.write_text('max_steps = 1\n[[orchestrator.env]]\nid = "tune"\nargs = { workers = 1 }\n')
    words = ["eval", "@", str(config), "--agent", "scripted:oracle", *quick]
    done = air(*words, cwd=here, front=front, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"cannot be written to" in done.stderr and b"AIR_CACHE names another" in done.stderr
    assert [*here.glob("air-cache-*/tune/**/*.npz")], "what was prepared is kept there"
    done = air("tasks", "show", "tune", "--play", "oracle", cwd=here, front=front, **{**more, "AIR_CACHE": str(home)})
    assert done.returncode == 1 and b"AIR_CACHE = " in done.stderr and b"fix: set AIR_CACHE" in done.stderr


def test_where_the_cache_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIR_CACHE", "")  # so that it is put back, whoever sets it meanwhile
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not yet" / "there"))
    assert files.cache_directory() == tmp_path / "not yet" / "there" / "air"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    with caplog.at_level(logging.WARNING):
        found = files.cache_directory()
    assert found.parent == tmp_path and found.stat().st_mode & 0o777 == 0o700
    assert files.cache_directory() == found and len(caplog.records) == 1  # said once, and to children by AIR_CACHE
    monkeypatch.setenv("AIR_CACHE", "")
    found.rmdir()
    found.symlink_to(tmp_path)
    with pytest.raises(AirError, match="belongs to somebody else"):
        files.cache_directory()
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "file"))
    with pytest.raises(AirError, match="cannot be written to"):
        files.cache_directory()
