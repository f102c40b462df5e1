"""What other packages add by entry points: environments in the group "airloop.envs", checks in "airloop.checks"."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def plugins(kind: str) -> dict[str, EntryPoint]:
    """Entry points of a kind ("envs", "checks") by name. Those under the package's former name, `air`, count too,
    except what an old installation of this package itself has left behind: its modules are gone."""
    return dict(_found(kind, tuple(sys.path)))


@cache
def _found(kind: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    points = _all(path)
    old = {p.name: p for p in points.select(group=f"air.{kind}") if not p.value.startswith("air.")}
    return old | {p.name: p for p in points.select(group=f"airloop.{kind}")}


@cache
def _all(_: tuple[str, ...]) -> Any:  # EntryPoints; Python 3.11 has another class for it
    """Of every kind: each installed package is looked at for them, which is done once for a path of imports."""
    return entry_points()


@cache
def package_of(point: EntryPoint) -> str:
    """The distribution that adds it, empty where that is not known. Its metadata, some ten pages, is parsed once."""
    return point.dist.name if point.dist else ""
