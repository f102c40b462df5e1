"""What other packages add by entry points: environments in the group "airloop.envs", checks in "airloop.checks"."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def plugins(kind: str) -> dict[str, EntryPoint]:
    """Entry points of a kind ("envs", "checks") by name. Those under the package's former name, `air`, count too,
    except what an old installation of this package itself has left behind: its modules are gone."""
    return dict(_found(kind, tuple(sys.path)))


@cache
def _found(kind: str, _: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Every installed package is looked at for it, which is done once for a path of imports."""
    old = {p.name: p for p in entry_points(group=f"air.{kind}") if not p.value.startswith("air.")}
    return old | {p.name: p for p in entry_points(group=f"airloop.{kind}")}


@cache
def package_of(point: EntryPoint) -> str:
    """The distribution that adds it, empty where that is not known. Its metadata, some ten pages, is parsed once."""
    return point.dist.name if point.dist else ""
