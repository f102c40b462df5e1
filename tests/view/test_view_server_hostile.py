"""Episodes that mean harm, or are broken: shown as text, and nothing else happens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest
from support.made_runs import HOSTILE, SCRIPT, episode, save, start_run
from support.viewer_client import ask, check_export, get, rows

from airloop.types import Action
from airloop_view.server import Options, Viewer, serving


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("hostile")
    run = start_run(root, extra='[logbook]\ngoal = "<b>bold</b> </script>"\n')
    step = run / "trajectories" / "step_0000"
    for name, text in HOSTILE.items():
        trajectory = episode(f"{name}_0-0", [text], task=text, family=text, prompt=text, seen=[text], error=text)
        save(step, trajectory)
    command = Action("command", f"cat > {SCRIPT.split('>')[0]!r} <<'E'\n{SCRIPT}\nE")
    save(step, episode("command_0-0", [SCRIPT], actions=[command]))
    save(step, episode("tool_0-0", [SCRIPT], actions=[Action("tool", name=SCRIPT, arguments={SCRIPT: SCRIPT})]))
    save(step, episode("long_0-0", ["x" * 5_000_000], seen=["y" * 3_000_000]))
    save(step, episode("many_0-0", ["word " * 300] * 400))
    save(step, episode("controls_0-0", ["\x01" * 300_000] * 8))
    (step / "broken_0-0.json").write_text('{"schema_version": 2, "id": ')
    (step / "empty_0-0.json").write_text("")
    (step / "list_0-0.json").write_text("[1, 2]")
    (step / "deep_0-0.json").write_text("[" * 200_000)
    (step / "bytes_0-0.json").write_bytes(b'{"schema_version": 2, "turns": [{"reply": {"content": "\xff\xfe \xc3"}}]}')
    (step / "types_0-0.json").write_text(
        json.dumps(dict.fromkeys(("task", "turns", "metrics"), 7) | {"schema_version": 2})
    )
    big = {"schema_version": 2, "branches": [{"tokens": [1, 2], "train": [[1, 10**12]], "turns": [[0, 10**12]]}]}
    (step / "runs_0-0.json").write_text(json.dumps(big))
    (step / f"{'</script>'.replace('/', '')}_0-0.json").write_text("{}")
    (step / os.fsdecode(b"name\xff_0-0.json")).write_text("{}")
    (run / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 0, "reward": NaN, "learner": {"loss": Infinity}}\n{"ki'
    )
    (run / "alarms.jsonl").write_text('{"event": "raised"}\nnot json\n[]\n')
    with serving(Options(root)) as viewer:
        yield viewer


@pytest.mark.long
def test_hostile_episodes_are_only_text(hostile: Viewer) -> None:
    found = rows(hostile)
    assert len(found) == len(HOSTILE) + 14
    for row in found:
        told = get(hostile, "/api/trajectory", run=row["run"], id=row["id"])
        for turn in told["turns"]:
            for action in turn["actions"]:
                assert re.sub(r'</?span( class="[a-z0-9 ]*")?>', "", action["html"]).count("<") == 0
        assert ask(hostile, "/api/tokens", run=row["run"], id=row["id"]).status in (200, 422)
        get(hostile, "/api/group", run=row["run"], source=row["source"], task=row["task"]) if row["task"] else None
        exported = ask(hostile, "/export", run=row["run"], id=row["id"])
        assert exported.status == 200, row["id"]
        check_export(exported)
    get(hostile, "/api/run", run=found[0]["run"])
    get(hostile, "/api/runs")


@pytest.mark.long
def test_what_is_cut_can_be_had_whole(hostile: Viewer) -> None:
    run = rows(hostile)[0]["run"]
    told = get(hostile, "/api/trajectory", run=run, id="long_0-0")
    turn = told["turns"][0]
    assert len(turn["reply"]) < 100_000 and turn["reply_cut"] == 5_000_000
    assert turn["observations"][0]["cut"] == 3_000_000
    part, text = turn["observations"][0]["part"], ""
    at: int | None = 0
    while at is not None:
        piece = get(hostile, "/api/text", run=run, id="long_0-0", part=part, offset=at)
        text, at = text + piece["text"], piece["next"]
    assert text == "y" * 3_000_000
    many = get(hostile, "/api/trajectory", run=run, id="many_0-0")
    assert len(many["turns"]) == 400


def test_an_unreadable_file_says_so_and_shows_its_bytes(hostile: Viewer) -> None:
    run = rows(hostile)[0]["run"]
    told = get(hostile, "/api/trajectory", run=run, id="broken_0-0")
    assert told["ending"] == "unreadable" and "not JSON" in told["error"] and told["turns"] == []
    assert get(hostile, "/api/text", run=run, id="broken_0-0", part="raw")["text"].startswith('{"schema_version"')
    assert {r["id"] for r in rows(hostile, ending="unreadable")} >= {"broken_0-0", "empty_0-0", "deep_0-0"}


def test_hostile_words_can_be_searched(hostile: Viewer) -> None:
    for text in (*HOSTILE.values(), SCRIPT, '"', "'; --", "a" * 10_000, "*", "(((", "\ud83d"):
        get(hostile, "/api/trajectories", q=text.encode("utf-8", "replace").decode())
    assert [row["id"] for row in rows(hostile, q="red")] == ["ansi_0-0"]
