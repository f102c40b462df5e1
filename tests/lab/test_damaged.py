"""Files of runs that are cut, broken, endless or no files: what can be read of them, at a bounded cost."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from airloop.runs import damaged
from airloop.runs.damaged import Reader


def test_whole_lines_are_read_and_others_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n\n[1]\nno\n\xff\xfe\n{"a": 2}\n{"a": 3')
    reader = Reader(tmp_path)
    assert reader.lines("x.jsonl") == [{"a": 1}, {"a": 2}]
    assert reader.problems == ["x.jsonl: 3 lines cannot be read"]


def test_a_line_without_end_costs_little_and_hides_nothing_after_it(tmp_path: Path) -> None:
    """24 MB of `[],[],…` took 736 MB."""
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n{"a": [' + b"[]," * 8_000_000 + b'0]}\n{"a": 2}\n')
    reader = Reader(tmp_path)
    tracemalloc.start()
    try:
        assert reader.lines("x.jsonl") == [{"a": 1}, {"a": 2}]
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert reader.problems == ["x.jsonl: 1 line cannot be read"]


def test_a_file_that_is_read_at_once_is_not_larger_than_its_like(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"a": [' + b"[]," * 8_000_000 + b"0]}")
    reader = Reader(tmp_path)
    assert reader.json("x.json") == {} and reader.problems == ["x.json is larger than 16 MiB and is not read"]


def test_of_an_endless_file_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged, "LONGEST", 100)
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n' * 1000)
    reader = Reader(tmp_path)
    assert 11 <= len(reader.lines("x.jsonl")) <= 12 and "only its first" in reader.problems[0]
