"""What agents' code needs, looked for inside a sandbox: what is installed on the host says nothing about it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from airloop.errors import AirError, InfraError, MissingRequirement
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import Backend, Image, StartTimeout

LOOK_S = 60.0
# Isolated, and without the shell's variables: it is the interpreter alone that is asked, the one that agents' PATH
# leads to.
LOOK = """/usr/bin/env -i PATH="$PATH" python3 -I - <<'AIR_END'
import importlib, importlib.util, json
wanted, load = json.loads({names!r}), {load}
lost = {{}}
for name in wanted:
    try:
        if load:
            importlib.import_module(name)
        elif importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {{name!r}}")
    except Exception as error:
        lost[name] = f"{{type(error).__name__}}: {{error}}"
print("AIR_LOST " + json.dumps(lost))
AIR_END"""
# Where the package is not called as its module is, and this Python does not have it either.
PACKAGES = {
    "sklearn": "scikit-learn",
    "bs4": "beautifulsoup4",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "cv2": "opencv-python",
}


def packages_of(module: str) -> tuple[str, ...]:
    """Whatever may carry it: the package of its usual name first, then those that do in this Python."""
    name = module.partition(".")[0]
    return tuple(dict.fromkeys((PACKAGES.get(name, name.replace("_", "-")), *_distributions().get(name, ()))))


def package_of(module: str) -> str:
    """What to install: as the package calls itself where it is here, or else by its usual name."""
    usual, *here = packages_of(module)
    known = _distributions().get(module.partition(".")[0], ())
    return usual if usual in known or not here else here[0]


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@asynccontextmanager
async def looking(
    sandbox: str, python: str, packages: tuple[str, ...], runtime: str = "", syscalls: str = ""
) -> AsyncIterator[Backend]:
    """A backend as agents' sandboxes have it, to look into one or two of them."""
    backend = make_backend(sandbox, python, packages, warm_python=False, syscalls=syscalls, runtime=runtime)
    try:
        yield backend
    finally:
        await backend.close()


async def missing_modules(backend: Backend, image: Image, modules: Sequence[str], load: bool = False) -> dict[str, str]:
    """Those that the Python of such a sandbox does not have, each with its error. `load`: by importing them, which also
    finds one that is there and broken, and takes as long as it takes."""
    command = LOOK.format(names=json.dumps(list(modules)), load=load)
    sandbox = await backend.start(image)
    try:
        result = await sandbox.run(command, LOOK_S)
    finally:
        await sandbox.close()
    if result.timed_out:
        raise TimeoutError
    found = [line for line in result.output.splitlines() if line.startswith("AIR_LOST ")]
    if not found:
        said = result.output.strip().splitlines()[-1:] or [f"exit code {result.exit_code}"]
        raise InfraError(f"the sandbox's Python could not be asked what it has: {said[0]}")
    lost: dict[str, str] = json.loads(found[-1].removeprefix("AIR_LOST "))
    return lost


def describe_missing(lost: dict[str, str], who: str, sandbox: str, python: str, image: str) -> MissingRequirement:
    """One sentence of all that is missing, and the line that installs it where agents will find it."""
    names = list(lost)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    what = f"{who} needs {listed} inside the agents' sandbox, and its Python has no such module ({lost[names[0]]})."
    packages = list(dict.fromkeys(map(package_of, names)))
    if sandbox == "container":
        return MissingRequirement(what, f"add them to the image {image}: RUN pip install {shlex.join(packages)}")
    return MissingRequirement(what, shlex.join([python or sys.executable, "-m", "pip", "install", *packages]))


def missing_in_sandbox(sandbox: str, gpus: Sequence[str] = ()) -> list[MissingRequirement]:
    """Why no sandbox could be made here; quick. A container engine is asked by the doctor alone, which can wait."""
    if sandbox != "bubblewrap":
        return []
    from airloop.sandbox.bubblewrap.backend import check
    from airloop.sandbox.bubblewrap.command import check_gpus

    try:
        check()
        check_gpus(gpus)
    except AirError as error:
        return [MissingRequirement(error.problem, error.fix)]
    except (OSError, subprocess.SubprocessError, StartTimeout) as error:
        return [MissingRequirement(f"The sandbox could not be tried: {error}.", "air doctor --only D20 says more.")]
    return []
