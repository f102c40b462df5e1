"""What `make` does before it trains: a real virtual environment and a real pip, on a project of a few lines that needs
no network; and everything that can go wrong with them."""

from __future__ import annotations

import ensurepip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest
from support.installation import ROOT

VERSION = """#!/bin/sh
# a Python that says it is of another version: $FAKE, with a t at its end where it is free-threaded
exec "{python}" -c "
import collections, sys, sysconfig
version, free = sys.argv[1].rstrip('t'), sys.argv[1].endswith('t')
parts = collections.namedtuple('parts', 'major minor micro releaselevel serial')
sys.version, sys.version_info = version, parts(*map(int, version.split('.')), 'final', 0)
sysconfig.get_config_var = lambda name: int(free)
exec(sys.argv[2])
" "$FAKE" "$2"
"""
# Builds a wheel of nothing that requires what the project says; slow where it is told to be.
BACKEND = """
import os, time, zipfile
from pathlib import Path
def build_editable(folder, config_settings=None, metadata_directory=None):
    Path("began").touch()
    time.sleep(float(os.environ.get("SLOW", "0")))
    name = "sample-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        head = "Metadata-Version: 2.1\\nName: sample\\nVersion: 1.0\\nProvides-Extra: some\\n"
        wheel.writestr("sample-1.0.dist-info/METADATA", head + Path("needs").read_text())
        tag = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr("sample-1.0.dist-info/WHEEL", tag)
        wheel.writestr("sample-1.0.dist-info/RECORD", "")
    return name
def get_requires_for_build_editable(config_settings=None):
    return []
"""
# In place of Python's own, which unpacks and compiles pip for five seconds: the pip of these tests.
ENSUREPIP = """
import sysconfig
from pathlib import Path
for entry in {entries}:
    (Path(sysconfig.get_path("purelib")) / Path(entry).name).symlink_to(entry)
"""
# What `python -m venv` is without the file of that name beside it.
REAL_VENV = """
import runpy
sys.path.pop(0)
runpy.run_module("venv", run_name="__main__")
"""
PYPROJECT = """
[project]
name = "sample"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "ein Prøject mit Leerzeichen"
    (made / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/install.sh", made / "scripts")
    shutil.copy(ROOT / "Makefile", made)
    (made / "backend.py").write_text(BACKEND)
    (made / "pyproject.toml").write_text(PYPROJECT)
    (made / "needs").write_text("")
    return made


def with_our_pip(project: Path) -> None:
    """For a test that looks at what comes after the environment: `python -m` finds it here first."""
    found = distribution("pip")
    entries = [str(Path(str(found.locate_file(name))).resolve()) for name in ("pip", f"pip-{found.version}.dist-info")]
    (project / "ensurepip.py").write_text(ENSUREPIP.format(entries=entries))


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "MAKE"))}
    return {**kept, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **more}


def install(project: Path, *front: str, venv: str = ".venv", **more: str) -> subprocess.CompletedProcess[str]:
    command = [*front, "sh", "scripts/install.sh", venv, "some", ".train"]
    env = {**environment(**more), "MAKECMDGOALS": "train"}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.10.4", ["air needs Python 3.11, 3.12 or 3.13; this is 3.10.4.", "make train PYTHON=python3.12"]),
        ("3.14.0", ["air needs Python 3.11, 3.12 or 3.13; this is 3.14.0.", "make train PYTHON=python3.12"]),
        ("3.13.2t", ["free-threaded build of 3.13.2", "make train PYTHON=python3.12"]),
    ],
)
def test_another_python_is_refused_by_make(project: Path, version: str, words: list[str]) -> None:
    folder = project / "bin"
    folder.mkdir()
    (folder / "python3").write_text(VERSION.format(python=sys.executable))
    (folder / "python3").chmod(0o755)
    for tool in ("sh", "find", "grep", "tail", "touch", "rm"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    env = {**environment(FAKE=version, PATH=str(folder))}
    del env["PYTHON"]
    command = [str(shutil.which("make")), "train"]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and not (project / ".venv").exists()
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_the_first_line_comes_before_the_environment_and_others_while_pip_is_silent(project: Path) -> None:
    """`python -m venv`, ensurepip and the large wheels had each been silent for as long as they take."""
    with_our_pip(project)
    said, before = project / "said", project / "before"
    # Python's own, once it has kept what was said until then.
    (project / "venv.py").write_text(f"import shutil, sys; shutil.copy({str(said)!r}, {str(before)!r})\n" + REAL_VENV)
    command = ["sh", "scripts/install.sh", ".venv", "some", ".train"]
    env = {**environment(SLOW="1", AIR_SAY_EVERY_S="0.2", TMPDIR=str(project)), "MAKECMDGOALS": "train"}
    with said.open("w") as file:
        done = subprocess.run(command, cwd=project, env=env, stdout=file, stderr=file, timeout=300, check=False)
    assert done.returncode == 0, said.read_text()
    first, *others = before.read_text().splitlines()  # an interpreter that is slow to begin has been told of already
    assert first == "installing what `make train` needs into .venv (once; some minutes)"
    assert all(re.fullmatch(r"  \d+ MB are there", line) for line in others), others
    assert len(re.findall(r"^  \d+ MB are there$", said.read_text(), re.MULTILINE)) >= 3, said.read_text()
    assert not list(project.glob("air-install.*"))


def test_no_python_at_all(project: Path) -> None:
    done = install(project, PYTHON="no-such-python")
    assert done.returncode == 1 and "there is no no-such-python here" in done.stderr


@pytest.mark.slow
def test_once_installed_nothing_is_done_until_the_project_changes(project: Path) -> None:
    with_our_pip(project)
    done = install(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing what `make train` needs" in done.stdout and (project / ".venv/.train").exists()
    again = install(project, PATH="/nowhere" + os.pathsep + os.environ["PATH"])
    assert again.returncode == 0 and again.stdout == ""
    assert install(project, PYTHON="python3", PATH="/nowhere" + os.pathsep + os.environ["PATH"]).stdout == ""
    other = install(project, PYTHON="no-such-python")
    assert other.returncode == 1 and "there is no no-such-python here" in other.stderr
    (project / "other").write_text("#!/bin/sh\necho 3.99\n")
    (project / "other").chmod(0o755)
    other = install(project, PYTHON="./other")
    assert other.returncode == 1 and "and ./other is 3.99" in other.stderr and "VENV=.venv-new" in other.stderr
    (project / "began").unlink()
    later = time.time() + 5
    os.utime(project / "pyproject.toml", (later, later))
    assert install(project).returncode == 0 and (project / "began").exists()
    # A second installation that was interrupted leaves no trust in the first: `make test` was killed within pip, after
    # `make train` had been installed.
    (project / ".venv/.begun").touch()
    (project / "began").unlink()
    assert install(project).returncode == 0 and (project / "began").exists()
    assert not (project / ".venv/.begun").exists()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(int(ensurepip.version().split(".")[0]) >= 26, reason="Python comes with a new pip")
def test_an_old_pip_is_renewed_where_there_is_a_newer_one(project: Path) -> None:
    newer = "Path('said').write_text(' '.join(sys.argv)); print('of the future')\n"
    write_wheel(
        project / "wheels", "pip", "99.0", {"pip/__main__.py": f"import sys\nfrom pathlib import Path\n{newer}"}
    )
    done = install(project, PIP_FIND_LINKS=(project / "wheels").as_uri())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-e .[some]" in (project / "said").read_text()
    assert "of the future" in (project / ".venv/install.log").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_installation_is_begun_anew(project: Path) -> None:
    """Killed while pip works; what it may have left half-done is gone after the next `make`."""
    with_our_pip(project)
    command = ["sh", "scripts/install.sh", ".venv", "some", ".train"]
    nowhere = subprocess.DEVNULL
    env = environment(SLOW="120")
    killed = subprocess.Popen(command, cwd=project, env=env, stdout=nowhere, stderr=nowhere, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (project / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (project / ".venv/.train").exists() and (project / ".venv/.begun").exists()
    (project / ".venv/half-done").touch()
    done = install(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / ".venv/.train").exists() and not (project / ".venv/half-done").exists()


@pytest.mark.slow
def test_no_network_is_said_with_what_to_do_and_is_repaired(project: Path) -> None:
    with_our_pip(project)
    (project / "needs").write_text("Requires-Dist: big-thing>=1\n")
    nobody = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    done = install(project, **nobody)
    assert done.returncode == 1 and "the packages could not be fetched" in done.stderr, done.stderr
    assert "make train again" in done.stderr and not (project / ".venv/.train").exists()
    big_wheel(project / "wheels", 1 << 10)
    done = install(project, PIP_FIND_LINKS=(project / "wheels").as_uri())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing all of them" in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a small file system needs bubblewrap")
@pytest.mark.parametrize("size", [4 << 20, 20 << 20], ids=["before pip", "in pip"])
def test_a_full_disk_is_said(project: Path, size: int) -> None:
    if size > 4 << 20:
        with_our_pip(project)  # which takes no room
    (project / "needs").write_text("Requires-Dist: big-thing>=1\n")
    big_wheel(project / "wheels", 40 << 20)
    small = project / "small disk"
    small.mkdir()
    front = ["bwrap", "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(small)]
    more = {"PIP_FIND_LINKS": (project / "wheels").as_uri(), "TMPDIR": str(small), "PIP_NO_CACHE_DIR": "1"}
    done = install(project, *front, venv=str(small / "venv"), **more)
    assert done.returncode == 1 and "the disk is full" in done.stderr, done.stdout + done.stderr
    assert "make train again" in done.stderr


@pytest.mark.slow
def test_an_environment_that_is_not_ours_is_not_cleared(project: Path) -> None:
    with_our_pip(project)
    for words in ([sys.executable, "-m", "venv", "--without-pip", "mine"], ["mine/bin/python", "-m", "ensurepip"]):
        subprocess.run(words, cwd=project, env=environment(), check=True, timeout=120)
    (project / "mine/kept").touch()
    (project / "mine/.begun").touch()
    done = install(project, venv="mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "mine/kept").exists() and (project / "mine/.train").exists()


def test_a_folder_that_is_not_ours_is_never_cleared(project: Path) -> None:
    """An environment without pip, as uv makes them, or no environment at all."""
    for name in ("mine", "data"):
        (project / name).mkdir()
        (project / name / "thesis.tex").touch()
        done = install(project, venv=name)
        assert done.returncode == 1 and "was not made by air" in done.stderr and "VENV=" in done.stderr
        assert (project / name / "thesis.tex").exists()


def big_wheel(folder: Path, size: int) -> None:
    write_wheel(folder, "big_thing", "1.0", {"big_thing.bin": os.urandom(size)})


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, str | bytes]) -> None:
    folder.mkdir()
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        head = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        wheel.writestr(f"{about}/METADATA", head)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
