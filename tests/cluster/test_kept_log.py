"""What a kept server prints is told by lines, however long they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from airloop.cluster import kept
from airloop.cluster.kept import KeptServer


def test_a_line_that_is_longer_than_what_is_read_at_once_comes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PIECE", 8)
    told: list[str] = []
    server = KeptServer.__new__(KeptServer)
    server._tell, server._read = lambda kind, text: told.append(text), 0
    server._server = SimpleNamespace(log=tmp_path / "log")  # type: ignore[assignment]
    (tmp_path / "log").write_text("one\n" + "x" * 20 + "\ntwo\nhal")
    server._follow(whole=False)
    assert told == ["one", "x" * 8, "x" * 8, "x" * 4, "two"]
    server._follow(whole=True)
    assert told[-1] == "hal"
