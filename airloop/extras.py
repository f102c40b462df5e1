"""Optional parts of the installation: what each needs, and the line that installs it."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires

# "numpy>=2; extra == 'tune'" and "x>=1; sys_platform == 'linux' and extra == 'tune'"
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def packages(extra: str) -> list[str]:
    """The requirements of one extra, as this installation declares them."""
    found = []
    for line in _requirements():
        name, _, marker = line.partition(";")
        named = _OF_EXTRA.search(marker)
        if named and named[1] == extra:
            found.append(re.sub(r"[\s()]", "", name))
    return found


def install_line(extra: str) -> str:
    """A command that installs an extra into the Python that runs this, from a checkout and from a wheel alike: it
    names the packages themselves, since ours is not on any index."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages(extra)])


def _requirements() -> list[str]:
    try:
        return requires("airloop") or []
    except PackageNotFoundError:  # run from a checkout that was never installed
        return []
