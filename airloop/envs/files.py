"""Environments of one file, named by path and class: `id = "./my_env.py:MyEnv"`."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from airloop import own_code
from airloop.errors import AirError
from airloop.own_code import anchored, content_digest, is_file_id, load_module, split_id

__all__ = ["anchored", "check_file", "content_digest", "find_class", "is_file_id", "names_function", "title"]
VERIFIERS = "verifiers:"  # before the name or path of an environment of that library


def title(env_id: str) -> str:
    """What an environment is called where nothing else is said: its file's name, or its id."""
    if env_id.startswith(VERIFIERS):
        return Path(env_id.removeprefix(VERIFIERS).split("@")[0]).name.removesuffix(".py")
    return Path(split_id(env_id)[0]).stem if is_file_id(env_id) else env_id


def check_file(env_id: str) -> Path:
    return own_code.check_file(env_id, "environment", "correct its id.")


def names_function(env_id: str) -> bool:
    """Whether the id names a function of the file, which is then an agent's program. The file is read, not run."""
    name = split_id(env_id)[2]
    try:
        body = ast.parse(check_file(env_id).read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError):
        return False  # importing it says what is wrong
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in body)


def find_class(env_id: str, base: type[Any]) -> type[Any]:
    """The class, a subclass of `base`; AirError says what is wrong with the file or the name."""
    name, _, kind = split_id(env_id)
    path = check_file(env_id)
    module = load_module(path)
    found = getattr(module, kind, None) if kind else None
    if isinstance(found, type) and issubclass(found, base) and not inspect.isabstract(found):
        return found
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
