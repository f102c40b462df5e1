"""Real installations for tests, without a network: virtual environments outside the tree that hold a wheel of this
checkout and, of the packages installed beside the tests, only those that are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED: list[str] = PROJECT["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def closure(requirements: list[str]) -> set[str]:
    """The names of all packages that installing these installs here, by what the installed ones declare."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            seen.add((name, extra))
            found = map(Requirement, requires(name) or [])
            waiting += [
                _plain(one)
                for one in found
                if (one.marker is None and not extra) or (one.marker and one.marker.evaluate({"extra": extra}))
            ]
    return {name for name, _ in seen}


def _plain(requirement: Requirement) -> Requirement:
    """Its marker has been asked already."""
    requirement.marker = None
    return requirement


def build_wheel(folder: Path) -> Path:
    """Of a copy: building leaves folders behind."""
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", source)
    return next((folder / "dist").glob("airloop-*.whl"))


def make_environment(folder: Path, packages: set[str], wheel: Path, whole: frozenset[str] = frozenset()) -> Path:
    """A fresh virtual environment with the packages and the wheel; the path of its `air`. Packages are links to ours,
    which a sandbox does not follow: those that are `whole` are there, file by file."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in sorted(packages):
        for entry in _entries(name):
            link = site / entry.name
            if link.exists():
                continue
            if name in whole and entry.is_dir():
                shutil.copytree(entry, link, copy_function=_same_file, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                link.symlink_to(entry)
    _pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return folder / "bin" / "air"


def install_from_index(folder: Path, wheel: Path, extra: str) -> Path:
    """A fresh virtual environment into which pip installs the wheel as anybody would, with all it needs from the
    index that pip uses; the path of its `air`."""
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", f"{wheel}[{extra}]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=_outside(), check=False)
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip(f"needs an index with the required packages: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin" / "air"


def _same_file(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)
    return target


def _entries(name: str) -> set[Path]:
    """What a package has in its site directory: modules, folders and its metadata."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return set()
    tops = {file.parts[0] for file in found.files or ()} - {".."}
    return {Path(str(found.locate_file(top))).resolve() for top in tops if top != "__pycache__"}


def _pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=_outside(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _outside() -> dict[str, str]:
    """Variables that let nothing of this checkout, or of the user's own packages, be seen."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "PYTHONNOUSERSITE": "1"}


def run_air(air: Path, *words: object, cwd: Path, timeout: float = 300, threads: str = "1") -> tuple[int, str, str]:
    """The installed command, to its end; with no `threads`, it takes the whole machine."""
    env = {**_alone(cwd), "OMP_NUM_THREADS": threads}
    if not threads:
        del env["OMP_NUM_THREADS"]
    done = subprocess.run(
        _command(air, words), capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env, check=False
    )
    return done.returncode, done.stdout, done.stderr


def start_air(air: Path, *words: object, cwd: Path) -> subprocess.Popen[bytes]:
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(_command(air, words), stdout=nowhere, stderr=nowhere, cwd=cwd, env=_alone(cwd))


def _command(air: Path, words: tuple[object, ...]) -> list[str]:
    return [str(air), *map(str, words)]


def _alone(cwd: Path) -> dict[str, str]:
    return {**_outside(), "AIR_CACHE": str(cwd / "cache"), "OMP_NUM_THREADS": "1"}
