"""Interpreters that have an environment of verifiers: those that `air env install` has made, each for one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from airloop.errors import AirError
from airloop.models import download

BESIDE = ("uv",)  # v1 starts agents' programs with it; without it, v1 would install one into the user's home


def home() -> Path:
    """The folder that has them all."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "airloop" / "verifiers"


def folder_of(name: str) -> Path:
    """Of "owner/Reverse_Text@0.1" as of "reverse-text"."""
    return home() / re.sub(r"[-_.]+", "-", name.rsplit("/", 1)[-1].split("@", 1)[0]).lower()


def interpreter(name: str, python: str = "") -> str:
    """The one given, else the environment's own, else this one where it has the library."""
    if python:
        return python
    if (own := folder_of(name) / "bin" / "python").exists():
        return str(own)
    beside = importlib.util.find_spec("verifiers")
    if beside is not None and beside.origin:  # a mere folder of that name has none
        return sys.executable
    raise AirError(
        f"The environment {name!r} of verifiers is not installed.",
        f"air env install {name}, or name an interpreter that has it: args = {{ python = … }}.",
    )


def install(name: str, wanted: Sequence[str], options: Sequence[str] = ()) -> Path:
    """An environment with what pip is to install, in the place of one of the same name; that one stays where this one
    cannot be made. In place, since scripts in it know where they are."""
    target = folder_of(name)
    before = target.with_name(f".{target.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if target.exists():
        target.rename(before)
    try:
        _make(target, wanted, options)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if before.exists():
            before.rename(target)
        raise
    shutil.rmtree(before, ignore_errors=True)
    return target


def _make(target: Path, wanted: Sequence[str], options: Sequence[str]) -> None:
    """Python compiles what is imported; pip would compile everything, for minutes."""
    venv.create(target, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--no-compile", *options, *wanted, *BESIDE]
    try:
        done = download.run_download(command, target, " ".join(wanted), "pip")
    except subprocess.TimeoutExpired as error:
        problem = f"pip has written nothing more for {error.timeout / 60:.0f} minutes."
        raise AirError(problem, "see whether its index can be reached, then repeat the command.") from None
    if done.returncode:
        raise AirError(
            f"{' '.join(wanted)} cannot be installed: {pip_error(done.stderr)}",
            "name what pip is to install, after the name: a package, a folder, a file or an address.",
        )


def pip_error(output: str) -> str:
    """The line of pip's output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.startswith("ERROR:")]
    return (lines or output.strip().splitlines() or ["pip gave no reason"])[-1]
