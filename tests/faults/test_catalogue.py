"""Every line of the failure catalogue has its tests, named after its id."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from airloop.doctor.base import checks
from airloop.doctor.designs import DESIGN
from airloop.doctor.failures import WHAT
from airloop.watch.alarms.monitor import rules

HERE = Path(__file__).parent


@functools.cache
def tests() -> tuple[tuple[Path, str, frozenset[str]], ...]:
    """All of them, with their files and decorators. (Read, not imported: some files need what is not here.)"""
    return tuple(
        (path, part.name, frozenset(map(ast.unparse, part.decorator_list)))
        for path in sorted(HERE.parent.rglob("test_*.py"))
        for part in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
    )


@functools.cache
def named() -> dict[str, str]:
    """The file of each."""
    return {name: path.name for path, name, _ in tests()}


@functools.cache
def in_make_test() -> frozenset[str]:
    """Those that `make test` runs: neither long nor soaks, nor with other libraries."""
    left_out = {"pytest.mark.long", "pytest.mark.soak"}
    return frozenset(name for path, name, marks in tests() if "interop" not in path.parts and not marks & left_out)


@pytest.mark.parametrize("id", WHAT)
def test_every_failure_has_a_test_named_after_it(id: str) -> None:
    assert any(name.startswith(f"test_{id}_") for name in named()), f"there is no test_{id}_…"
    assert any(name.startswith(f"test_{id}_") for name in in_make_test()), f"`make test` runs no test_{id}_…"


@pytest.mark.parametrize("id", DESIGN)
def test_the_test_that_proves_a_design_is_named_after_it_and_is_run(id: str) -> None:
    _, test = DESIGN[id]
    assert id in WHAT and test.startswith(f"test_{id}_") and test in named()


def test_every_check_and_every_alarm_has_tests_of_its_ids() -> None:
    """Those of the catalogue; "-" marks names that checks have for what no line of it covers."""
    ids = {id for check in checks() for id in check.ids} | {rule.id for rule in rules()}
    assert {id for id in ids if "-" not in id} <= set(WHAT)
    for id in ids - set(WHAT):
        assert any(name.startswith(f"test_{id[0]}_") for name in named()), id


def test_names_of_tests_are_those_of_known_failures() -> None:
    """A name with an id that the catalogue does not have would be a test of nothing."""
    for name in named():
        first = name.split("_")[1]
        if first[:1].isupper() and first[1:].isdigit():
            assert first in WHAT, name
