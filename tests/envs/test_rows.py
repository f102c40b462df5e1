"""Rows from files, directories and the hub's cache; what is missing is told with the way to get it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.envs.rows import Source, parse_slice, parse_source, read_rows
from airloop.errors import AirError

ROWS = [{"id": i, "text": f"row {i}\u2028still row {i}", "parts": [{"n": i}]} for i in range(10)]


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "main").mkdir(parents=True)
    datasets.Dataset.from_list(ROWS[:7]).to_parquet(root / "main" / "train-00000-of-00001.parquet")
    datasets.Dataset.from_list(ROWS[7:]).to_parquet(root / "main" / "test-00000-of-00001.parquet")
    return root


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json", "rows.json.gz"])
def test_files(tmp_path: Path, name: str) -> None:
    data = json.dumps(ROWS).encode() if ".jsonl" not in name else lines(ROWS) + b"\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_rows(str(path)) == ROWS
    assert read_rows(str(path), "train[2:4]") == ROWS[2:4]
    assert read_rows(f"{path},answerable,train[-3:]") == ROWS[-3:]
    assert read_rows(f"{path},,train") == ROWS


def test_a_directory_with_a_config(directory: Path) -> None:
    assert read_rows(f"{directory},main,train[:3]") == ROWS[:3]
    assert read_rows(f"{directory},main", "test") == ROWS[7:]
    assert read_rows(f"{directory / 'main'}", "train") == ROWS[:7]


def test_a_directory_of_json_lines_is_one_split_where_nothing_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "rows.jsonl").write_bytes(lines(ROWS))
    assert read_rows(str(tmp_path / "plain")) == ROWS


def test_a_split_that_is_not_there_is_told_with_those_that_are(directory: Path) -> None:
    with pytest.raises(AirError, match="has no split 'tests'") as error:
        read_rows(f"{directory},main,tests[:5]")
    assert "did you mean 'test'" in error.value.fix and "train, test" in error.value.fix
    with pytest.raises(AirError, match="has several splits"):
        read_rows(f"{directory},main")


def test_what_the_hubs_cache_has_needs_no_network(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(repo: str, repo_type: str, local_files_only: bool) -> str:
        assert (repo, repo_type, local_files_only) == ("someone/some-data", "dataset", True)
        return str(directory / "main")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert read_rows("someone/some-data,,train[:2]") == ROWS[:2]


def test_without_a_hub_the_way_to_get_the_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AirError, match="data set nobody/no-such-data is not on this machine") as error:
        read_rows("nobody/no-such-data,main", "train")
    assert "hf download --repo-type dataset nobody/no-such-data" in error.value.fix
    assert "jsonl(.gz) file" in error.value.fix


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("nowhere/rows.jsonl", "There is no data at"),
        ("./nowhere", "There is no data at"),
        ("nowhere", "not the form of a hub id"),
        ("", "not of the form path,config,split"),
        ("a,b,c,d", "not of the form path,config,split"),
    ],
)
def test_what_is_no_source(source: str, problem: str) -> None:
    with pytest.raises(AirError, match=problem):
        read_rows(source)


def test_broken_files_are_told_by_their_line(tmp_path: Path) -> None:
    def fails(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(AirError) as error:
            read_rows(str(tmp_path / name))
        return error.value.problem

    assert "line 2 is not JSON" in fails("a.jsonl", b'{"a": 1}\n{"a": \n')
    assert "line 1 is no JSON object" in fails("b.jsonl", b"[1, 2]\n")
    assert "entry 2 is no JSON object" in fails("c.json", b'[{"a": 1}, 2]')
    assert "cannot be read" in fails("d.jsonl.gz", gzip.compress(lines(ROWS))[:-9])
    assert "cannot be read" in fails("e.jsonl.gz", b"not gzip")
    assert "none of the files" in fails("f.csv", b"a,b\n")


def test_a_split_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines(ROWS))
    with pytest.raises(AirError, match="names its split itself"):
        read_rows(f"{tmp_path / 'rows.jsonl'},,train[:5]", "test")


def test_sources_and_slices_are_read() -> None:
    assert parse_source("openai/gsm8k, main , train[:256]") == Source("openai/gsm8k", "main", "train[:256]")
    assert parse_source("rows.jsonl") == Source("rows.jsonl")
    assert parse_slice("train") == ("train", slice(None, None))
    assert parse_slice("train[:256]") == ("train", slice(None, 256))
    for wrong in ("train[:10%]", "train[5]", "train[1:2:3]", "train[", "a b", ""):
        with pytest.raises(AirError, match="cannot be read"):
            parse_slice(wrong)


@given(st.none() | st.integers(-20, 20), st.none() | st.integers(-20, 20))
def test_a_slice_is_pythons(start: int | None, stop: int | None) -> None:
    name, part = parse_slice(f"train[{'' if start is None else start}:{'' if stop is None else stop}]")
    assert name == "train" and list(range(10))[part] == list(range(10))[start:stop]
