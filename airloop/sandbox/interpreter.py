"""Which parts of a Python installation an agent may see: the interpreter, its library and named packages.

Everything else that happens to be installed stays out: air itself, and packages that carry the data (and so the
answers) of tasks. Run as a program, it surveys the interpreter that runs it; so any interpreter can be used.
"""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

# With all they need, where installed.
PACKAGES = (
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "joblib",
    "matplotlib",
    "seaborn",
    "statsmodels",
    "xgboost",
    "lightgbm",
    "catboost",
    "torch",
    "torchvision",
    "tqdm",
    "pyyaml",
    "flake8",
)
# Packages that look themselves or others up at run time. The metadata of all others is left out, because every
# entry costs half a millisecond at each start of a sandbox.
NEED_METADATA = ("flake8", "mccabe", "pycodestyle", "pyflakes", "matplotlib", "seaborn")
# Imported once, before any sandbox exists, by the process that scripts are forked from.
PRELOAD = (
    *("argparse", "collections", "csv", "itertools", "json", "math", "random"),
    *("numpy", "numpy.random", "pandas", "scipy", "scipy.stats", "sklearn"),
    *("sklearn.compose", "sklearn.ensemble", "sklearn.impute", "sklearn.linear_model", "sklearn.metrics"),
    *("sklearn.model_selection", "sklearn.naive_bayes", "sklearn.neighbors", "sklearn.neural_network"),
    *("sklearn.pipeline", "sklearn.preprocessing", "sklearn.svm", "sklearn.tree"),
)


@dataclass(frozen=True)
class Interpreter:
    executable: str  # as it is started
    real: str  # the file behind the links
    shown: tuple[str, ...]  # files and directories, read-only, at their own place
    hidden: tuple[str, ...]  # directories shown empty but for what is in `shown`
    missing: tuple[str, ...]  # packages that are not installed


@cache
def interpreter(executable: str = "", packages: tuple[str, ...] = PACKAGES) -> Interpreter:
    if not executable or executable == sys.executable:
        return Interpreter(**survey(packages))
    command = [executable, "-I", __file__, *packages]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        from airloop.errors import AirError  # not at the top: run as a program, this file has the library alone

        problem = f"{executable} is no Python that agents can use: {error}"
        raise AirError(problem, "give the path of a Python 3.11 or newer.") from None
    facts: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in json.loads(ran.stdout).items()}
    return Interpreter(**facts)


def survey(packages: Sequence[str]) -> dict[str, Any]:
    sites = _site_directories()
    shown, missing = _package_paths(packages, sites)
    real = os.path.realpath(sys.executable)
    library = sysconfig.get_path("stdlib")
    shown = [library, real, *_shared_library(), *shown]
    if sys.prefix != sys.base_prefix:
        shown.append(os.path.join(sys.prefix, "pyvenv.cfg"))
    hidden = [s for s in sites if os.path.isdir(s)]
    # What is in the standard library's directory but not of it: packages beside it.
    hidden += [d for d in (f"{library}/site-packages", f"{library}/dist-packages") if os.path.isdir(d)]
    return {
        "executable": sys.executable,
        "real": real,
        "shown": tuple(dict.fromkeys(p for p in shown if os.path.exists(p))),
        "hidden": tuple(dict.fromkeys(hidden)),
        "missing": tuple(missing),
    }


def _site_directories() -> list[str]:
    found = [*site.getsitepackages(), site.getusersitepackages()]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found += [f"{sys.base_prefix}/lib/{version}/site-packages", "/usr/lib/python3/dist-packages"]
    found += [f"/usr/local/lib/{version}/dist-packages", f"/usr/local/lib/{version}/site-packages"]
    return list(dict.fromkeys(found))


def _shared_library() -> list[str]:
    name, place = sysconfig.get_config_var("LDLIBRARY"), sysconfig.get_config_var("LIBDIR")
    paths = sorted(Path(place).glob(f"{name}*")) if name and place and ".so" in name else []
    return [str(path) for path in paths]


def _package_paths(packages: Sequence[str], sites: Sequence[str]) -> tuple[list[str], list[str]]:
    paths: list[str] = []
    missing = []
    todo, done = list(packages), set()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop(0)).lower()
        if name in done:
            continue
        done.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in packages:
                missing.append(name)
            continue
        paths += _top_level(found, sites)
        for need in found.requires or ():
            if "extra ==" not in need:
                todo.append(re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0])
    return sorted(set(paths)), missing


def _top_level(found: metadata.Distribution, sites: Sequence[str]) -> list[str]:
    """A package's own entries in its site directory, with its metadata where that is read."""
    base = str(found.locate_file(""))
    if base.rstrip("/") not in [s.rstrip("/") for s in sites]:
        return []  # an editable install: somebody's source tree
    names = {file.parts[0] for file in found.files or () if file.parts and file.parts[0] not in ("..", "__pycache__")}
    needed = str(found.metadata["Name"]).lower() in NEED_METADATA
    return [os.path.join(base, name) for name in names if needed or not name.endswith((".dist-info", ".egg-info"))]


if __name__ == "__main__":
    print(json.dumps(survey(sys.argv[1:])))
