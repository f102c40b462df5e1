"""What other packages add by entry points, under today's name and the former one."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from airloop import plugins


def test_the_former_group_is_still_read_and_the_new_one_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = EntryPoints(
        [
            EntryPoint("theirs", "their_package:Env", "air.envs"),
            EntryPoint("both", "their_package:Old", "air.envs"),
            EntryPoint("tune", "air.envs.tune:TuneEnv", "air.envs"),  # left by an old installation of ours
            EntryPoint("both", "their_package:New", "airloop.envs"),
            EntryPoint("looked_at", "their_package:check", "airloop.checks"),
        ]
    )
    asked: list[None] = []
    monkeypatch.syspath_prepend(tmp_path)  # they are looked for once for each path of imports
    monkeypatch.setattr(plugins, "entry_points", lambda: asked.append(None) or found)
    known = plugins.plugins("envs")
    assert {name: point.value for name, point in known.items()} == {
        "theirs": "their_package:Env",
        "both": "their_package:New",
    }
    assert list(plugins.plugins("checks")) == ["looked_at"]
    assert len(asked) == 1  # whatever the kinds: all installed packages are opened for it
