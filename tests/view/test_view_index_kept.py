"""The index is kept true as files come, change and go; and what is read of a file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indexed_runs import close, everything, index_of
from support.made_runs import SCRIPT, alarm, episode, mixed_runs, record, save, start_run
from support.tiny_runs import tiny_run

from airloop_view.entry import read_entry
from airloop_view.episode import load, load_head
from airloop_view.index import Index
from airloop_view.store import MAKE


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AIR_CACHE", str(cache))
    return cache


def keys(index: Index) -> dict[str, int]:
    return dict(index.store.writer.execute("SELECT id, key FROM details"))


def test_a_file_that_never_changes_is_read_once(tmp_path: Path) -> None:
    run = start_run(tmp_path / "runs")
    for i in range(5):
        save(run / "trajectories" / "step_0000", episode(f"a_{i}-0"))
    index, _ = index_of(tmp_path / "runs")
    before = keys(index)
    save(run / "trajectories" / "step_0000", episode("b_5-0"))
    assert index.update() == {run.name}
    close(index)
    index, _ = index_of(tmp_path / "runs")  # the next start
    assert len(before) == 5 and before.items() < keys(index).items() and len(keys(index)) == 6
    assert index.update() == set()
    close(index)


def test_files_change_go_and_come_back(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    step = run / "trajectories" / "step_0000"
    path = save(step, episode("a_0-0", ["first words"]))
    save(step, episode("b_0-1", ["others"]))
    index, lists = index_of(tmp_path)
    save(step, episode("a_0-0", ["second thoughts"], reward=1.0))
    index.update()
    assert [r["id"] for r in everything(lists, words="second")] == ["a_0-0"]
    assert everything(lists, words="first") == [] and len(everything(lists)) == 2
    path.unlink()
    assert index.update() == {run.name} and [r["id"] for r in everything(lists)] == ["b_0-1"]
    os.rename(run, tmp_path / "exp1.7-arith-1115")
    assert index.update() == {run.name, "exp1.7-arith-1115"}
    assert [r["run"] for r in everything(lists)] == ["exp1.7-arith-1115"]
    shutil.rmtree(tmp_path / "exp1.7-arith-1115")
    index.update()
    assert everything(lists) == []
    close(index)


def test_a_half_written_file_is_shown_as_such_and_then_whole(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    path = save(run / "trajectories" / "step_0000", episode("a_0-0", ["all is well"], reward=1.0))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    index, lists = index_of(tmp_path)
    assert [(r["ending"], r["reward"]) for r in everything(lists)] == [("unreadable", None)]
    path.write_bytes(whole)  # in place: the directory's own time does not change
    index.update()
    assert [(r["ending"], r["reward"]) for r in everything(lists)] == [("done", 1.0)]
    assert [r["id"] for r in everything(lists, words='"all is well"')] == ["a_0-0"]
    close(index)


def test_what_training_made_of_it_comes_later(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    step = run / "trajectories" / "step_0000"
    save(step, episode("a_0-0", reward=0.5))
    index, lists = index_of(tmp_path)
    assert everything(lists)[0]["fate"] is None
    # The record, and an episode that is listed only after it was read.
    record(run, 0, [{"id": i, "reward": 0.25, "advantage": 1.5, "fate": "trained"} for i in ("a_0-0", "b_0-1")])
    assert index.update() == {run.name}
    save(step, episode("b_0-1", reward=0.5))
    index.update()
    found = {r["id"]: (r["advantage"], r["fate"], r["reward"]) for r in everything(lists)}
    assert found == {"a_0-0": (1.5, "trained", 0.25), "b_0-1": (1.5, "trained", 0.25)}
    alarm(run, "raised", 0)
    assert index.update() == {run.name}
    assert len(everything(lists, alarms=("F1",))) == 2 and everything(lists, alarms=("F2",)) == []
    close(index)


def test_small_files_of_a_run_are_followed(tmp_path: Path) -> None:
    run = start_run(tmp_path, status="running")
    index, _ = index_of(tmp_path)
    assert index.update() == set()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 0, "reward": 0.5}\n')
    assert index.update() == {run.name}
    assert index.update() == set()
    close(index)


def test_many_files_are_read_by_processes_that_end(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    step = run / "trajectories" / "step_0000"
    paths = [save(step, episode(f"a_{i}-0", [f"number{i}"])) for i in range(80)]
    (step / "broken.json").write_text("{")
    index, lists = index_of(tmp_path)
    assert len(everything(lists)) == 81 and len(everything(lists, words="number7")) == 1
    parts = iter(index.parser.stream([paths[:40], [*paths[40:], step / "gone.json"]]))
    first = [entry.preview for entry in next(parts) if entry]
    workers = list(index.parser._workers)
    assert first == [f"number{i}" for i in range(40)] and workers and all(w.poll() is None for w in workers)
    workers[0].kill()  # the rest is read all the same
    last = next(parts)
    assert len(last) == 41 and last[-1] is None and last[0] and last[0].preview == "number40"
    assert list(parts) == [] and all(w.poll() is not None for w in workers)
    close(index)


def test_episodes_of_the_same_name_are_both_shown(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    for source in ("step_0000", "step_0001"):
        save(run / "trajectories" / source, episode("a_0-0", [source]))
    save(run / "evaluations" / "before", episode("a_0-0"))
    index, lists = index_of(tmp_path)
    assert len({row["id"] for row in everything(lists)}) == 3
    assert index.update() == set()
    close(index)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = save(tmp_path / "outside", episode("secret_0-0", ["the secret"]))
    run = start_run(tmp_path / "runs")
    step = run / "trajectories" / "step_0000"
    save(step, episode("a_0-0"))
    (step / "link.json").symlink_to(outside)
    (run / "trajectories" / "step_0001").symlink_to(outside.parent)
    (tmp_path / "runs" / "elsewhere").symlink_to(tmp_path / "outside")
    record(tmp_path / "outside", 0, [{"id": "a_0-0", "fate": "secret", "reward": 0.75}])
    (run / "tokens").symlink_to(tmp_path / "outside" / "tokens")
    os.mkfifo(step / "pipe.json")
    index, lists = index_of(tmp_path / "runs")
    assert [(r["id"], r["fate"]) for r in everything(lists)] == [("a_0-0", None)]
    with pytest.raises(OSError, match="out of the viewed"):
        index.folder.read(step / "link.json")
    with pytest.raises(OSError, match="out of the viewed"):
        index.folder.read(run / "trajectories" / "step_0001" / outside.name)
    close(index)


# --- where it is kept -------------------------------------------------------------------------------------------


def test_nothing_is_written_where_it_looks(tmp_path: Path, own_cache: Path) -> None:
    root = tmp_path / "runs"
    mixed_runs(root, count=10)
    before = {p: p.lstat().st_mtime_ns for p in root.rglob("*")}
    index, _ = index_of(root)
    assert index.store.path.parent == own_cache / "view" and index.store.path.parent.stat().st_mode & 0o077 == 0
    close(index)
    assert {p: p.lstat().st_mtime_ns for p in root.rglob("*")} == before


def test_an_index_that_is_damaged_or_of_another_make_is_made_anew(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    save(run / "trajectories" / "step_0000", episode("a_0-0"))
    index, _ = index_of(tmp_path)
    path = index.store.path
    close(index)
    path.write_bytes(b"no database at all" * 1000)
    index, lists = index_of(tmp_path)
    assert len(everything(lists)) == 1
    close(index)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {MAKE + 1}")
    index, lists = index_of(tmp_path)
    assert len(everything(lists)) == 1
    close(index)


def test_indexes_of_what_is_gone_are_swept_away(tmp_path: Path, own_cache: Path) -> None:
    for name in ("a", "b"):
        start_run(tmp_path / name)
        close(index_of(tmp_path / name)[0])
    assert len(list((own_cache / "view").glob("*.sqlite"))) == 2
    shutil.rmtree(tmp_path / "a")
    close(index_of(tmp_path / "b")[0])
    assert len(list((own_cache / "view").glob("*.sqlite"))) == 1


def test_without_a_cache_it_works_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(tmp_path / "runs")
    save(run / "trajectories" / "step_0000", episode("a_0-0"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "file" / "cache"))
    index, lists = index_of(tmp_path / "runs")
    assert len(everything(lists)) == 1 and "cannot be written" in index.store.note
    close(index)
    shutil.rmtree(index.store.path.parent)


# --- what is read of a file ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_look_sees_what_the_whole_one_does() -> None:
    paths = sorted(tiny_run().rglob("*_*-*.json"))
    assert len(paths) > 20
    for path in paths:
        data = path.read_bytes()
        head, whole = load_head(data, path), load(data, path)
        assert head["branches"] == [] and whole["branches"]
        assert {k: v for k, v in head.items() if k not in ("sampled", "branches")} == {
            k: v for k, v in whole.items() if k not in ("sampled", "branches")
        }
        assert read_entry(data, path).tokens == sum(s["tokens"] for s in whole["sampled"])


def test_a_text_that_looks_like_the_end_of_the_turns_does_not_cut_them(tmp_path: Path) -> None:
    for text in ('], "sampled": [', '"], "sampled": [{', SCRIPT):
        path = save(tmp_path, episode("a_0-0", [text, "later"], prompt=text))
        data = path.read_bytes()
        assert load_head(data, path)["turns"] == load(data, path)["turns"]
        assert read_entry(data, path).turns == 2


@given(st.binary(max_size=200))
def test_any_bytes_give_an_entry(data: bytes) -> None:
    entry = read_entry(data, Path("/nowhere/x.json"))
    assert entry.preview if entry.ending == "unreadable" else isinstance(json.loads(data), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *("id", "task", "ending", "error", "reward", "rewards", "turn_rewards", "metrics", "version", "seed", "started"),
    *("seconds", "tools", "turns", "sampled", "branches", "trajectory", "info", "history"),
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from([1, 2, None]))
def test_any_json_gives_an_entry(data: dict[str, Any], version: int | None) -> None:
    given_version = {"schema_version": version} if version else {}
    entry = read_entry(json.dumps({**given_version, **data}).encode(), Path("/nowhere/x.json"))
    assert isinstance(entry.ending, str) and entry.turns >= 0 and entry.tokens >= 0
