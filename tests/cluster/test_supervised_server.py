"""What a supervised server prints is reported by lines, however long they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from airloop.cluster import supervised_server
from airloop.cluster.supervised_server import SupervisedServer


def test_a_line_that_is_longer_than_what_is_read_at_once_comes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_server, "PIECE", 8)
    told: list[str] = []
    server = SupervisedServer.__new__(SupervisedServer)
    server._on_event, server._read = lambda kind, text: told.append(text), 0
    server._server = SimpleNamespace(log=tmp_path / "log")  # type: ignore[assignment]
    (tmp_path / "log").write_text("one\n" + "x" * 20 + "\ntwo\nhal")
    server._follow(whole=False)
    assert told == ["one", "x" * 8, "x" * 8, "x" * 4, "two"]
    server._follow(whole=True)
    assert told[-1] == "hal"
