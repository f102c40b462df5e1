"""Environments of one file, named by path and class: `id = "./my_env.py:MyEnv"`."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from airloop.errors import AirError

MARK = ".py:"


def is_file_id(env_id: str) -> bool:
    return MARK in env_id or env_id.endswith(".py")


def anchored(env_id: str, folders: Sequence[Path]) -> str:
    """The id with an absolute path, so that it means the same from anywhere: the first of the folders that has it."""
    name, colon, kind = _split(env_id)
    found = [folder.absolute() / Path(name).expanduser() for folder in folders]
    path = next((path for path in found if path.is_file()), found[0])
    return f"{path.resolve()}{colon}{kind}"


def title(env_id: str) -> str:
    """What such an environment is called where nothing else is said: its file's name."""
    return Path(_split(env_id)[0]).stem


def content_digest(env_id: str) -> str:
    """Of the file's text: another text is another environment. Empty where there is no such file."""
    path = Path(_split(env_id)[0]).expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest() if is_file_id(env_id) and path.is_file() else ""


def check_file(env_id: str) -> Path:
    """The file, not yet imported. One that lies inside a run's directory came with the run, from whoever made it:
    reading a run must never run code."""
    path = Path(_split(env_id)[0]).expanduser().absolute()
    if not path.is_file():
        raise AirError(f"There is no file {path} for the environment {env_id!r}.", "correct its id.")
    if run := next((p for p in path.parents if (p / "status.json").is_file() and (p / "config.toml").is_file()), None):
        raise AirError(
            f"The environment {env_id!r} is a file inside the run {run}, and a run's files are never executed.",
            "look at the file; if you trust it, copy it elsewhere and name that place in the config.",
        )
    return path


def find_class(env_id: str, base: type[Any]) -> type[Any]:
    """The class, a subclass of `base`; AirError says what is wrong with the file or the name."""
    name, _, kind = _split(env_id)
    path = check_file(env_id)
    found = getattr(_module(path), kind, None) if kind else None
    if isinstance(found, type) and issubclass(found, base) and not inspect.isabstract(found):
        return found
    module = _module(path)
    usable = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if found is not None and kind in usable:
        lacks = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise AirError(f"{kind} in {path} is not a whole environment: it lacks {lacks}.", "define what it lacks.")
    problem = f"{path} has no environment {kind!r}." if kind else f"{env_id!r} names no class of the file."
    if usable:
        raise AirError(problem, f'did you mean id = "{name}:{usable[0]}"?')
    raise AirError(problem, "define a subclass of airloop.envs.base.Environment in it.")


def _split(env_id: str) -> tuple[str, str, str]:
    """Path, colon, class. Only the colon after .py counts: a Windows path has one more."""
    head, mark, kind = env_id.rpartition(MARK)
    return (f"{head}.py", ":", kind) if mark else (env_id, "", "")


def _module(path: Path) -> ModuleType:
    """Imported once, under a name of its own: classes in it can be pickled, and two files of one name do not meet."""
    name = f"airloop_env_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a file whose name ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        place = next((f":{f.lineno}" for f in reversed(_frames(error)) if f.filename == str(path)), "")
        raise AirError(
            f"{path}{place} cannot be imported: {type(error).__name__}: {error}.", "mend the file."
        ) from error
    return module


def _frames(error: Exception) -> list[Any]:
    import traceback

    if isinstance(error, SyntaxError):
        return [traceback.FrameSummary(error.filename or "", error.lineno or 0, "")]
    return list(traceback.extract_tb(error.__traceback__))
