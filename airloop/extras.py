"""Optional parts of the installation: what each needs, whether it is there, and the line that installs it."""

from __future__ import annotations

import re
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires

from airloop.errors import AirError

OURS = "airloop"
# "numpy>=2; extra == 'tune'" and "x>=1; sys_platform == 'linux' and extra == 'tune'"
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_NAME = re.compile(r"([\w.-]+)(?:\[([\w,.-]+)\])?")


def packages(extra: str, distribution: str = OURS) -> list[str]:
    """The requirements of one extra, as the installed distribution declares them; an extra made of others is theirs."""
    found: list[str] = []
    for line in _requirements(distribution):
        requirement, _, marker = line.partition(";")
        named = _OF_EXTRA.search(marker)
        if not named or named[1] != extra:
            continue
        requirement = re.sub(r"[\s()]", "", requirement)
        name, others = _parts(requirement)
        if name == distribution:
            found += [package for other in others for package in packages(other, distribution)]
        else:
            found.append(requirement)
    return list(dict.fromkeys(found))


def missing(extra: str, distribution: str = OURS) -> list[str]:
    """The names of an extra's packages that are not installed. Nothing is imported to find out."""
    return [name for name, _ in map(_parts, packages(extra, distribution)) if not _is_installed(name)]


def check_extra(extra: str, who: str, distribution: str = OURS) -> None:
    """Refuse, naming what is missing and how to get it. `who`: what needs the extra, as a sentence begins."""
    if absent := missing(extra, distribution):
        raise AirError(
            f"{who} needs {_listed(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed.",
            install_line(extra, distribution),
        )


def install_line(extra: str, distribution: str = OURS, again: bool = False) -> str:
    """A command that installs an extra into the Python that runs this, from a checkout and from a wheel alike: it
    names the packages themselves, since ours is not on any index. `again`: what is there is damaged."""
    anew = ["--force-reinstall", "--no-deps"] if again else []
    return shlex.join([sys.executable, "-m", "pip", "install", *anew, *packages(extra, distribution)])


def _parts(requirement: str) -> tuple[str, list[str]]:
    found = _NAME.match(requirement)
    assert found is not None, requirement  # a distribution's metadata begins each with a name
    return found[1], found[2].split(",") if found[2] else []


def _is_installed(name: str) -> bool:
    try:
        distribution(name)  # found by its folder's name: to read its version takes a hundred times as long
    except PackageNotFoundError:
        return False
    return True


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@cache
def _requirements(distribution: str) -> list[str]:
    try:
        return requires(distribution) or []
    except PackageNotFoundError:  # run from a checkout that was never installed
        return []
