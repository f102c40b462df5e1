"""Writes the package of an environment: what verifiers and prime-rl install and import."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.envs.base import Environment, find_environment, load_environment
from airloop.envs.files import title
from airloop.envs.paths import anchored_args, each_text, marked
from airloop.errors import AirError
from airloop.extras import OURS
from airloop.files import whole_directory
from airloop.own_code import anchored, is_file_id, split_id
from airloop.packaged.readme import readme
from airloop.plugins import plugins
from airloop.rollout.program import ProgramEnvironment
from airloop.version import __version__

LEAST_VERIFIERS = "0.2"

MODULE = '''"""{about}

Written by `air env package`. verifiers loads it by one of its two interfaces, whichever the installed version has.
"""

from pathlib import Path

from airloop.packaged.definition import Definition
from airloop.packaged.interfaces import has_v0, has_v1

definition = Definition(
    {id},
    Path(__file__).parent,
    args={args},
    rewards={rewards},
)
__all__ = []

if has_v0():

    def load_environment(**args):
        """Arguments are the environment's own; `rewards`, `train_split`, `eval_split` and `trajectory_dir` besides."""
        from airloop.packaged.verifiers_v0 import load

        return load(definition, **args)

    __all__ += ["load_environment"]

if has_v1():
    from airloop.packaged.verifiers_v1 import classes

    Taskset, Harness, Env = classes(definition)
    __all__ += ["Env", "Harness", "Taskset"]
'''

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = {about}
readme = "README.md"
requires-python = ">=3.11,<3.14"
dependencies = {dependencies}

[tool.setuptools]
packages = ["{module}"]

[tool.setuptools.package-data]
{module} = ["**/*"]
"""


@dataclass(frozen=True)
class Package:
    """What was written."""

    directory: Path
    module: str
    files: tuple[str, ...]

    @property
    def distribution(self) -> str:
        return self.module.replace("_", "-")


def write_package(
    env_id: str, out: Path, *, name: str = "", args: Mapping[str, Any], rewards: Mapping[str, float]
) -> Package:
    """AirError where the environment cannot be packaged, or the folder is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AirError(f"{out} is not empty.", "give another --out: nothing is overwritten.")
    env = _checked(env_id, args, rewards)
    module = _module_name(env_id, name)
    with whole_directory(out) as folder:
        inside = folder / module
        inside.mkdir()
        packed = _pack(env_id, args, type(env), inside)
        about = f"The environment {env.name!r} of airloop, for verifiers and prime-rl."
        texts = {
            "pyproject.toml": PROJECT.format(
                distribution=module.replace("_", "-"),
                about=json.dumps(about),
                dependencies=json.dumps(_dependencies(env_id)),
                module=module,
            ),
            "README.md": readme(env, module, about, packed.args, rewards),
            f"{module}/__init__.py": MODULE.format(
                about=about, id=json.dumps(packed.id), args=repr(packed.args), rewards=repr(dict(rewards))
            ),
        }
        for place, text in texts.items():
            (folder / place).write_text(text, encoding="utf-8")
        files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return Package(out, module, tuple(files))


def _checked(env_id: str, args: Mapping[str, Any], rewards: Mapping[str, float]) -> Environment:
    """The environment as the package will have it, so that wrong arguments are refused now."""
    kind = find_environment(env_id)()
    if issubclass(kind, ProgramEnvironment):
        raise AirError(
            f"The environment {env_id!r} is a program that asks air's own endpoint: verifiers cannot play it.",
            "package an environment whose replies are acted on by a session.",
        )
    env = load_environment(env_id, anchored_args(args, kind.Args, [Path.cwd()]))
    env.weigh(rewards or env.reward_weights)
    return env


def _module_name(env_id: str, name: str) -> str:
    stem = title(env_id) if is_file_id(env_id) else env_id
    found = name.replace("-", "_") or "air_" + re.sub(r"\W", "_", stem).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", found):
        raise AirError(f"{name!r} is no name for a package.", "use small letters, numbers and _: air_mine.")
    return found


def _dependencies(env_id: str) -> list[str]:
    """Of a builtin environment its extra, of another package's that package."""
    point = None if is_file_id(env_id) else plugins("envs")[env_id]
    owner = point.dist.name if point is not None and point.dist is not None else OURS
    extras = f"[{','.join(point.extras)}]" if point is not None and point.extras else ""
    named = f"{owner}{extras}"
    ours = [f"{named}>={__version__}"] if owner == OURS else [named, f"{OURS}>={__version__}"]
    return [*ours, f"verifiers>={LEAST_VERIFIERS}"]


@dataclass(frozen=True)
class _Packed:
    """An environment's id and arguments as they are inside of the package."""

    id: str
    args: dict[str, Any]


def _pack(env_id: str, args: Mapping[str, Any], kind: type[Environment], inside: Path) -> _Packed:
    """Files that they name are copied, so that the package needs nothing beside it."""
    packed_id = env_id
    if is_file_id(env_id):
        path, colon, name = split_id(anchored(env_id, [Path.cwd()]))
        packed_id = f"{_copy(Path(path), inside)}{colon}{name}"
    found = anchored_args(args, kind.Args, [Path.cwd()])
    for name in marked(kind.Args).keys() & found.keys():
        found[name] = each_text(found[name], lambda text: _inside(text, inside))
    return _Packed(packed_id, found)


def _inside(text: str, inside: Path) -> str:
    """Of "/there/rewards.py:correct" or "/there/rows.jsonl,train": the same of a copy."""
    path, rest = _path_in(text)
    if path is None:
        return text
    if path.is_dir():
        raise AirError(
            f"{path} is a folder, and a package holds files.",
            "leave it out here, and give the argument where the package is loaded.",
        )
    return f"{_copy(path, inside)}{rest}"


def _path_in(text: str) -> tuple[Path | None, str]:
    """The longest beginning that is there, up to a comma or a colon, and what follows it."""
    ends = [len(text), *(found.start() for found in reversed(list(re.finditer("[,:]", text))))]
    for end in ends:
        path = Path(text[:end].strip())
        if path.is_absolute() and path.exists():
            return path, text[end:]
    return None, text


def _copy(path: Path, inside: Path) -> str:
    target = inside / path.name
    if path.name == "__init__.py" or (target.exists() and target.read_bytes() != path.read_bytes()):
        raise AirError(f"The package would have two files called {path.name}.", "rename one of them.")
    shutil.copyfile(path, target)
    return path.name
