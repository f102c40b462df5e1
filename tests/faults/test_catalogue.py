"""Every line of the failure catalogue has its tests here: named after its id, and collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from airloop.doctor.base import checks
from airloop.doctor.failures import DESIGN, WHAT
from airloop.watch.alarms import rules

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> dict[str, str]:
    """What pytest finds in this directory, however few of its files were asked for: names, and the file of each."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for item in pytest.Module.from_parent(request.session, path=path).collect():
            if isinstance(item, pytest.Function):
                found[item.originalname] = path.name
    return found


@pytest.mark.parametrize("id", WHAT)
def test_every_failure_has_a_test_named_after_it(id: str, collected: dict[str, str]) -> None:
    own = [name for name in collected if name.startswith(f"test_{id}_")]
    assert own, f"no test_{id}_… in {HERE.name}/"
    # Alarms of all families are in test_watch_….py, and a probe's episodes are looked at for several at once.
    families = {collected[name].split("_")[1] for name in own}
    assert families & {id[0].lower(), "watch"}, f"none of {own} is in test_{id[0].lower()}_….py"


@pytest.mark.parametrize("id", DESIGN)
def test_the_test_that_proves_a_design_is_named_after_it_and_is_run(id: str, collected: dict[str, str]) -> None:
    _, test = DESIGN[id]
    assert id in WHAT and test.startswith(f"test_{id}_") and test in collected


def test_every_check_and_every_alarm_has_tests_of_its_ids(collected: dict[str, str]) -> None:
    """Those of the catalogue; "-" marks names that checks have for what no line of it covers."""
    ids = {id for check in checks() for id in check.ids} | {rule.id for rule in rules()}
    assert {id for id in ids if "-" not in id} <= set(WHAT)
    for id in ids - set(WHAT):
        assert any(name.startswith(f"test_{id[0]}_") for name in collected), id


def test_names_of_tests_are_those_of_known_failures(collected: dict[str, str]) -> None:
    """A name with an id that the catalogue does not have would be a test of nothing."""
    for name in collected:
        first = name.split("_")[1]
        if first[:1].isupper() and first[1:].isdigit():
            assert first in WHAT, name
