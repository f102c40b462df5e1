"""What others write for the environments of a package: read from aliases.toml beside the configs that the package adds
by an entry point in the group "airloop.configs". By environment:

    [my-env]
    ids = ["vf-my-env"]       # what it is called elsewhere
    flags = ["datasets"]      # flags of other command lines that mean it
    args = ["noise_rate"]     # its arguments that are often written one level too high
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache

from airloop.shipped import folder_of, packages

FILE = "aliases.toml"


def env_synonyms() -> dict[str, str]:
    """Names elsewhere, with the name here."""
    return {theirs: env for env, said in _tables().items() for theirs in said.get("ids", ())}


def env_of_flag(flag: str) -> str | None:
    """The environment that a flag of another command line means."""
    return next((env for env, said in _tables().items() if flag in said.get("flags", ())), None)


def env_args() -> frozenset[str]:
    return frozenset(name for said in _tables().values() for name in said.get("args", ()))


def _tables() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return _read(packages(), tuple(sys.path))


@cache
def _read(added: tuple[str, ...], _: tuple[str, ...]) -> dict[str, dict[str, list[str]]]:
    """Files are read once for a path of imports."""
    found: dict[str, dict[str, list[str]]] = {}
    for package in added:
        for folder in folder_of(package):
            if (path := folder / FILE).is_file():
                found |= tomllib.loads(path.read_text(encoding="utf-8"))
    return found
