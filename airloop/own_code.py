"""Code of the user's own, named by a file and a name in it: "./my_env.py:MyEnv", "./my_loss.py:loss"."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from airloop.errors import AirError
from airloop.os_errors import reading

MARK = ".py:"
OWN = "airloop_own_"  # how the names of modules made of such files begin


def is_file_id(name: str) -> bool:
    return MARK in name or name.endswith(".py")


def split_id(file_id: str) -> tuple[str, str, str]:
    """Path, colon, name. Only the colon after .py counts: a Windows path has one more."""
    head, mark, name = file_id.rpartition(MARK)
    return (f"{head}.py", ":", name) if mark else (file_id, "", "")


def anchored(file_id: str, folders: Sequence[Path]) -> str:
    """The id with an absolute path, so that it means the same from anywhere: the first of the folders that has it."""
    path, colon, name = split_id(file_id)
    found = [folder.absolute() / Path(path).expanduser() for folder in folders]
    chosen = next((path for path in found if path.is_file()), found[0])
    return f"{chosen.resolve()}{colon}{name}"


def content_digest(file_id: str) -> str:
    """Of the file's text, or of all in a folder: another text is other code. Empty where there is no such file."""
    path = Path(split_id(file_id)[0]).expanduser()
    if not is_file_id(file_id) and not path.is_absolute():  # a name
        return ""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        told = [f"{file.relative_to(path)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in found]
        return hashlib.sha256("\n".join(told).encode("utf-8", "surrogateescape")).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def check_file(file_id: str, what: str, correct: str) -> Path:
    """The file, not yet imported. One that lies inside a run's directory came with the run, from whoever made it:
    reading a run must never run code."""
    path = Path(split_id(file_id)[0]).expanduser().absolute()
    with reading(path):
        if not path.is_file():
            raise AirError(f"There is no file {path} for the {what} {file_id!r}.", correct)
        path.open("rb").close()
    if run := inside_run(path):
        raise AirError(
            f"The {what} {file_id!r} is a file inside the run {run}, and a run's files are never executed.",
            "look at the file; if you trust it, copy it elsewhere and name that place in the config.",
        )
    return path


def inside_run(path: Path) -> Path | None:
    """The run whose directory a file lies in."""
    return next((p for p in path.parents if (p / "status.json").is_file() and (p / "config.toml").is_file()), None)


def load_module(path: Path) -> ModuleType:
    """Imported once, under a name of its own: classes in it can be pickled, and two files of one name do not meet."""
    name = f"{OWN}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a file whose name ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script's own main, or what it reads of a command line
        del sys.modules[name]
        raise AirError(
            f"{path}{line_of(error, path)} cannot be imported: {type(error).__name__}: {error}.", "mend the file."
        ) from error
    return module


def own_place(error: BaseException) -> str:
    """The last line of a user's own file that the error went through, as file:line; empty where there is none."""
    frames = [
        (frame.f_globals.get("__name__") or "", frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [f"{frame.f_code.co_filename}:{line}" for name, frame, line in frames if name.startswith(OWN)]
    return own[-1] if own else ""


def line_of(error: BaseException, path: Path) -> str:
    """ ":12", the last line of the file that the error went through; empty where it did not."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}" if error.filename == str(path) else ""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f":{frame.lineno}" for frame in frames if frame.filename == str(path)), "")
