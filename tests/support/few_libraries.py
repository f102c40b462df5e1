"""Sandboxes that are quick to start: most tests make one of their own, and few look at what scripts can import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from airloop.sandbox.bubblewrap import host
from airloop.sandbox.door.doorkeeper import Door
from airloop.sandbox.interpreter import PRELOAD


@pytest.fixture(autouse=True)
def few_libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are forked from a warm Python as ever, which has imported numpy alone: pandas and scikit-learn, two
    seconds for each sandbox, are for tests that are marked with `libraries`, and for all of tests/sandbox."""
    if request.node.get_closest_marker("libraries"):
        return

    def door(directory: Path, name: str, python: str, preload: Sequence[str] = (), rehearsal: str = "") -> Door:
        return Door(directory, name, python, ("numpy",) if preload == PRELOAD else preload, rehearsal)

    monkeypatch.setattr(host, "Door", door)
