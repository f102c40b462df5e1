"""Files that are small on disk and large in memory: told from their bytes, shown as unreadable, never parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.made_runs import episode, save, start_run

from airloop.runs.trajectory_file import to_json
from airloop_view.episode import Unreadable, load, load_head
from airloop_view.folder import Folder
from airloop_view.records import Records
from airloop_view.weight import BLOCK, HEAVIEST, LINE, STRING, STRINGS, SURELY_LIGHT, _weight_of, too_heavy, weight

# Of memory for each byte of the file; parsed, they would take thirty.
MOST_BYTES = 6
SIZE = 6 << 20  # which by its weight is far too heavy already
# The lightest of all; and those that only their memory tells of, which smaller ones would not.
SIZES = {"numbers": 12 << 20, "status": 24 << 20, "tokens": 24 << 20}
# What one file of a run holds, by the file's place in it.
HEAVY = {
    "lists": ("trajectories/step_0000/b_0-0.json", b'{"schema_version": 2, "turns": [', b"[],", b"[]]}\n"),
    "tables": ("trajectories/step_0000/b_0-0.json", b'{"schema_version": 2, "turns": [', b"{},", b"{}]}\n"),
    "numbers": ("trajectories/step_0000/b_0-0.json", b'{"schema_version": 2, "sampled": [', b"0,", b"0]}\n"),
    "head": (
        "trajectories/step_0000/b_0-0.json",
        b'{"schema_version": 2, "metrics": {"sampled_tokens": 1}, "turns": [',
        b"[],",
        b'[]], "sampled": []}\n',
    ),
    "one line of metrics": ("metrics.jsonl", b'{"kind": "train", "step": 0, "x": [', b"[],", b"[]]}\n"),
    "many lines of metrics": ("metrics.jsonl", b"", b"{}\n", b"{}\n"),
    "alarms": ("alarms.jsonl", b'{"event": "raised", "x": [', b"[],", b"[]]}\n"),
    "status": ("status.json", b'{"x": [', b"[],", b"[]]}\n"),
    "config": ("config.toml", b"x = [", b"[],", b"[]]\n"),
    "tokens": ("tokens/step_0000.jsonl", b'{"id": "a_0-0", "x": [', b"[],", b"[]]}\n"),
    "many lines of tokens": ("tokens/step_0000.jsonl", b"", b"{}\n", b"{}\n"),
}
# Looks at everything that a page would; says the peak of its memory before and after, in MB.
LOOK = """
import json, resource, sys, urllib.parse, urllib.request
from pathlib import Path
from airloop_view.server import Options, serving
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
def look(root):
    with serving(Options(Path(root))) as viewer:
        def get(path, **values):
            try:
                address = f"{viewer.url[:-1]}{path}?{urllib.parse.urlencode(values)}"
                with urllib.request.urlopen(address, timeout=60) as said:
                    return json.loads(said.read()) if path != "/export" else said.read()
            except urllib.error.HTTPError as error:
                return {"status": error.code}
        runs = get("/api/runs")["runs"]
        for run in runs:
            get("/api/run", run=run["id"])
        rows = get("/api/trajectories")["rows"]
        for row in rows:
            place = {"run": row["run"], "id": row["id"]}
            told = get("/api/trajectory", **place)
            row["told"] = told["ending"]
            for path in ("/api/tokens", "/export"):
                get(path, **place)
            get("/api/group", run=row["run"], source=row["source"], task=row["task"] or "-")
        return rows, runs
look(sys.argv[1])
before = peak()
rows, runs = look(sys.argv[2])
print(json.dumps({"grown": peak() - before, "rows": rows, "problems": runs[0]["problems"]}))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", HEAVY)
def test_what_a_file_would_grow_to_is_not_read(tmp_path: Path, name: str) -> None:
    for folder in ("light", "heavy"):
        save(start_run(tmp_path / folder) / "trajectories" / "step_0000", episode("a_0-0"))
    place, first, piece, last = HEAVY[name]
    path = next((tmp_path / "heavy").iterdir()) / place
    path.parent.mkdir(exist_ok=True)
    size = SIZES.get(name, SIZE)
    path.write_bytes(first + piece * (size // len(piece)) + last)
    ran = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "light"), str(tmp_path / "heavy")],
        env={**os.environ, "AIR_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["grown"] < MOST_BYTES * size >> 20
    by_id = {row["id"]: row for row in found["rows"]}
    assert by_id["a_0-0"]["told"] == "done"
    if path.parent.name == "step_0000":
        assert by_id["b_0-0"]["told"] == "unreadable"
    elif path.parent.name != "tokens":
        assert len(found["problems"]) == 1 and place in found["problems"][0]


def test_a_weight_is_an_upper_bound_and_texts_are_no_structure() -> None:
    text = json.dumps({"a": '[{,\\"' * 500_000})
    assert weight(text.encode()) < HEAVIEST and weight(text.encode(), most=0) < 12 * len(text)
    assert weight(b"[" + b"[]," * 3_000_000 + b"[]]") > HEAVIEST
    assert weight(json.dumps({"x": list(range(100_000))}).encode()) < 32 << 20
    for broken in (b'"', b'"\\', b'"\\"' * 100_000, b'["a', b"\\" * 100_000):  # each is gone through once
        assert STRINGS.sub(b"", broken).count(b'"') == 0


@pytest.mark.parametrize("texts", [["a", '"[{,'], ["é", "\u4e00"]], ids=["plain", "wide"])
def test_lines_that_are_weighed_together_weigh_what_they_weigh(tmp_path: Path, texts: list[str]) -> None:
    sizes = (1, 3, BLOCK // 2, 1, 2 * BLOCK, 7, BLOCK)
    lines = [json.dumps({"x": [texts[0] * n, texts[1], [n]]}, ensure_ascii=False).encode() + b"\n" for n in sizes]
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines) + b'{"half')
    wanted = sum(LINE + weight(line) for line in [*lines, b'{"half'])
    assert _weight_of(tmp_path / "a.jsonl") == pytest.approx(wanted, abs=STRING * len(lines))
    assert weight(b"[" * SURELY_LIGHT) <= HEAVIEST and weight(b'"\\u' + b"[" * (SURELY_LIGHT - 3), most=0) <= HEAVIEST


def test_a_heavy_file_says_so_and_an_ordinary_long_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    heavy = b'{"schema_version": 2, "turns": [' + b"[]," * 2_000_000 + b"[]]}\n"
    for read in (load, load_head):
        with pytest.raises(Unreadable, match="MiB of memory"):
            read(heavy, path)
    long = episode("a_0-0", ["[{,}]" * 1_000_000], seen=["é" * 100_000])
    assert len(load(json.dumps(to_json(long)).encode(), path)["turns"]) == 1


def test_of_a_list_only_what_can_be_shown_is_shaped(tmp_path: Path) -> None:
    made = {"schema_version": 2, "turns": [0] * 20_000, "sampled": [0, {}], "branches": [[], {}], "tools": [1, {}]}
    found = load(json.dumps(made).encode(), tmp_path / "e.json")
    assert len(found["turns"]) == 5_000 and [len(found[k]) for k in ("sampled", "branches", "tools")] == [1, 1, 1]


def test_the_small_files_of_a_run_are_weighed_again_when_they_change(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    names = ("metrics.jsonl", "config.toml")
    assert too_heavy(run, names) == ""
    (run / "metrics.jsonl").write_bytes(b"[" + b"[]," * 3_000_000 + b"[]]\n")
    assert too_heavy(run, names).startswith("metrics.jsonl would take")
    (run / "metrics.jsonl").write_text('{"kind": "train"}\n')
    assert too_heavy(run, names) == ""
    (run / "config.toml").write_bytes(b"#" * (2 << 20))
    assert too_heavy(run, names).startswith("config.toml has 2 MiB")


def test_records_of_a_step_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airloop_view.records.MOST_LINES", 10)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "step_0000.jsonl").write_text('{"id": "a"}\n' * 50)
    assert len(list(Records(Folder(tmp_path), tmp_path, "step_0000").heads())) == 10


def test_of_records_only_the_rewards_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    lines = [{"id": "a", "rewards": {"r": 1}, "x": "y"}, {"id": "b", "rewards": {}}, {"id": [], "rewards": {}}]
    lines += [{"id": "c", "rewards": 7}, {"id": "d"}]
    (tmp_path / "tokens" / "step_0000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = Records(Folder(tmp_path), tmp_path, "step_0000")
    assert records.rewards({"a", "c", "d"}) == {"a": {"r": 1}}
