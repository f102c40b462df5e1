"""Which of verifiers' two interfaces the installed version has. Nothing is imported to find out."""

from __future__ import annotations

import re
from importlib.metadata import version

FIRST_V1 = (0, 3, 1)  # where Taskset, Harness and Env have the form that they still have
FIRST_WITHOUT_V0 = (0, 4, 0)


def _installed() -> tuple[int, ...]:
    """ "0.4.1.dev86" is (0, 4, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version("verifiers"))
    assert found is not None  # a version begins with a number
    return tuple(map(int, found[0].split(".")))


def has_v0() -> bool:
    """`load_environment`; 0.3.1 has both."""
    return _installed() < FIRST_WITHOUT_V0


def has_v1() -> bool:
    """Taskset and Env: what prime-rl uses as well."""
    return _installed() >= FIRST_V1
