"""What no training writes and a file can hold all the same: numbers beyond every column, names twice, edits of a
billion lines. Nothing of it may stop the index or an answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made_runs import episode, record, save, start_run
from support.viewer_client import ask, get, rows

from airloop.types import Action
from airloop_view.diffs import Workspace
from airloop_view.server import Options, Viewer, serving

HUGE = 1.7e308
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tokens": lambda e: e["metrics"].update(sampled_tokens=1e300),
    "nan": lambda e: e["task"]["payload"].update(x=float("nan"), y=[float("inf")]),
    "deep": lambda e: e.update(tools=[json.loads('{"a":' * 800 + "1e999" + "}" * 800)]),
    "times": lambda e: e["turns"][0]["times"].update(queue=HUGE, model=HUGE),
    "id": lambda e: e["branches"][0]["tokens"].__setitem__(3, 1 << 40),
    "logprob": lambda e: e["branches"][0]["logprobs"].__setitem__(0, HUGE),
    "reward": lambda e: e.update(reward=HUGE),
    "rewards": lambda e: e.update(reward=HUGE),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    run = start_run(tmp_path)
    for place, (name, change) in enumerate(CHANGES.items()):
        path = save(run / "trajectories" / "step_0000", episode(f"{name}_0-{place}"))
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data) + "\n")
    made = {"fate": "trained", "advantage": HUGE, "logprobs": [[-HUGE] * 6], "entropies": [[0.0] * 6]}
    record(run, 0, [{"id": "logprob_0-5", **made}])
    save(run / "trajectories" / f"step_{'9' * 25}", episode("a_0-0"))
    with serving(Options(tmp_path)) as started:
        yield started


def test_numbers_beyond_every_column_stop_nothing(viewer: Viewer) -> None:
    found = rows(viewer)
    assert len(found) == len(CHANGES) + 1 and viewer.watch.problem == ""
    for row in found:
        place = {"run": row["run"], "id": row["id"]}
        get(viewer, "/api/trajectory", **place)
        get(viewer, "/api/tokens", **place)
        get(viewer, "/api/group", run=row["run"], source=row["source"], task=row["task"])
        assert ask(viewer, "/export", **place).status == 200


def test_names_that_differ_only_in_bytes_that_are_no_text_are_all_shown(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    for name in (b"\xff", b"\xfe"):
        start_run(tmp_path, "other").rename(tmp_path / os.fsdecode(name))
    for step in (b"step_0000", b"\xff", b"\xfe"):
        shelf = run / "trajectories" / os.fsdecode(step)
        first = save(shelf, episode("a_0-0"))
        for name in (b"\xff.json", b"\xfe.json", b"\xfd.json"):
            (shelf / os.fsdecode(name)).write_bytes(first.read_bytes())
    with serving(Options(tmp_path)) as viewer:
        found = rows(viewer)
        assert len(found) == 12 == len({row["id"] for row in found}) and viewer.watch.problem == ""
        for row in found:
            get(viewer, "/api/trajectory", run=run.name, id=row["id"])
        assert len({found["id"] for found in get(viewer, "/api/runs")["runs"]}) == 3
        time.sleep(1.5)
        assert rows(viewer) == found  # nothing goes and comes again


@pytest.mark.parametrize(
    ("commands", "shown"),
    [
        (["open a.py", "edit 1:999999999 << E\nx\nE"], ""),
        (["cat<<a>b\na\n" * 8000], ""),
        (["edit;" * 15_000], "y" * 400_000),
        (["cat<<a>b\n" + "x\n" * 40_000 + "a\nopen b\n" + "edit 1:1 <<a\ny\na\n" * 1000], ""),
    ],
    ids=["range", "documents", "commands", "edits"],
)
def test_commands_that_would_take_long_to_follow(commands: list[str], shown: str) -> None:
    seen: Any = {"text": shown, "failed": False}
    actions = [{"kind": "command", "text": text, "arguments": {}} for text in commands]
    began = time.process_time()
    Workspace().after({"actions": actions, "observations": [seen] * len(actions)})
    assert time.process_time() - began < 8  # each took ten seconds and more, or all of the memory


def test_an_edit_of_more_lines_than_were_shown_counts_them() -> None:
    actions = [Action("command", "open a.py"), Action("command", "edit 2:4 << E\nx\nE")]
    turn = {
        "actions": [{"kind": a.kind, "text": a.text, "arguments": {}} for a in actions],
        "observations": [{"text": "", "failed": False}] * 2,
    }
    workspace = Workspace(files={"a.py": {1: "one", 2: "two", 5: "five"}})
    (change,) = workspace.after(turn)
    assert change.note.startswith("2 of the lines")
    assert change.diff.splitlines()[2:] == ["@@ -2,3 +2,1 @@", " one", "-two", "+x", " five"]
    assert workspace.files["a.py"] == {1: "one", 2: "x", 3: "five"}


def test_a_step_that_was_deleted_is_forgotten(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    for step in range(2):
        save(run / "trajectories" / f"step_{step:04d}", episode(f"a_pi{step}_0-0", ["word"]))
    with serving(Options(tmp_path)) as viewer:
        assert len(rows(viewer, q="word")) == 2
        (run / "trajectories" / "step_0001").rename(run / "trajectories" / "aside_0001_0")
        deadline = time.monotonic() + 10
        while rows(viewer, source="step_0001") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert {row["source"] for row in rows(viewer)} == {"step_0000", "aside_0001_0"}
        told = get(viewer, "/api/trajectory", run=run.name, id="aside_0001_0/a_pi1_0-0")
        assert told["training"]["why"].startswith("Set aside")


def test_a_step_that_was_away_for_a_while_comes_back(tmp_path: Path) -> None:
    """Its directory's time is the same as before."""
    from airloop_view.folder import Folder
    from airloop_view.index import Index
    from airloop_view.store import Store

    step = start_run(tmp_path) / "trajectories" / "step_0000"
    path = save(step, episode("a_0-0"))
    for old in (path, step):
        os.utime(old, (1.7e9, 1.7e9))  # long settled: not listed again
    store = Store(tmp_path)
    index = Index(Folder(tmp_path), store)
    counted = []
    for away in (False, True, False):
        if away:
            step.rename(tmp_path / "away")
        elif not step.exists():
            (tmp_path / "away").rename(step)
        index.update()
        counted.append(store.writer.execute("SELECT count(*) FROM facts").fetchone()[0])
    store.close()
    assert counted == [1, 0, 1]


def test_a_task_that_comes_twice_in_a_step_has_two_baselines(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    step = run / "trajectories" / "step_0000"
    made = []
    for group, member in [(g, m) for g in range(2) for m in range(3)]:
        save(step, episode(f"t_pi0_{group}-{member}", reward=float(group)))
        made.append(
            {"id": f"t_pi0_{group}-{member}", "fate": "zero advantage", "advantage": 0.0, "reward": float(group)}
        )
    save(step, episode("t_pi0_1-2-2", ending="infra_error", reward=0.0))
    record(run, 0, [*made, {"id": "t_pi0_1-2-2", "fate": "infra_error"}])
    with serving(Options(tmp_path)) as viewer:
        told = get(viewer, "/api/trajectory", run=run.name, id="t_pi0_1-0")
        assert told["group"] == {"source": "step_0000", "task": "0+1", "place": "1", "size": 3, "mean": 1.0, "std": 0.0}
        assert "all 3 of its group" in told["training"]["why"]
        ask_for = {"run": run.name, "source": "step_0000", "task": "0+1"}
        assert len(get(viewer, "/api/group", **ask_for)["members"]) == 7
        members = get(viewer, "/api/group", **ask_for, place="1")["members"]
        assert [m["reward"] for m in members] == [1.0, 1.0, 1.0, None]
        assert {row["group"] for row in rows(viewer)} == {"0", "1"}
        assert "t_pi0_1-2-2" not in [row["id"] for row in rows(viewer, max=0.5)]  # what was spoilt has no reward


def test_a_parent_is_known_by_its_place_not_by_its_name(tmp_path: Path) -> None:
    name, child = "exp1.0-arith-1115", "exp1.1-arith-1115"
    start_run(tmp_path / "a", name)
    parent = start_run(tmp_path / "b", name)
    start_run(tmp_path / "b", child)
    with serving(Options(tmp_path)) as viewer:
        assert get(viewer, "/api/run", run=f"b/{child}")["parent"] == f"b/{name}"
        outside = parent / "config.toml"
        outside.rename(tmp_path / "elsewhere.toml")
        outside.symlink_to(tmp_path / "elsewhere.toml")
        assert get(viewer, "/api/run", run=f"b/{child}")["config_diff"] is None  # a link is not followed
        outside.unlink()
        assert get(viewer, "/api/run", run=f"b/{child}")["parent"] is None  # and a/ has another run of that name


def test_a_step_of_many_points_keeps_every_reward() -> None:
    from airloop_view.curves import curves

    steps = [{"step": i, "reward": i / 7, "metrics": {f"m{k}": i for k in range(150)}} for i in range(1200)]
    found = {curve["name"]: curve for curve in curves(steps)}
    assert found["reward"]["x"] == list(range(1, 1201)) and len(found["metrics/m3"]["x"]) < 1200


def test_a_file_of_records_is_read_again_for_episodes_that_came_in_after_it(tmp_path: Path) -> None:
    """Killed between an episode and what training made of it: the next start has both."""
    from airloop_view.folder import Folder
    from airloop_view.index import Index
    from airloop_view.store import Store

    run = start_run(tmp_path)
    step = run / "trajectories" / "step_0000"
    save(step, episode("a_0-0"))
    record(run, 0, [{"id": f"a_0-{i}", "fate": "trained", "advantage": 1.0, "logprobs": [[0.5]]} for i in range(2)])
    folder = Folder(tmp_path)
    store = Store(tmp_path)
    index = Index(folder, store)
    index.update()
    save(step, episode("a_0-1"))

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    index._read_record = killed  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        index.update()
    store.close()
    store = Store(tmp_path)
    Index(folder, store).update()
    fates = store.writer.execute("SELECT count(*), count(fate) FROM facts").fetchone()
    store.close()
    assert fates == (2, 2)
