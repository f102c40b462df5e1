"""The viewer's server: a real one on a port of this machine, asked over HTTP."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.made_runs import alarm, episode, record, save, start_run
from support.tiny_runs import tiny_run
from support.viewer_client import ask, check_export, get, rows

from airloop_view import watch
from airloop_view.server import Options, Viewer, serving


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tiny() -> Iterator[Viewer]:
    with serving(Options(tiny_run().parent, price_per_hour=3.6)) as viewer:
        yield viewer


@pytest.fixture
def run_name() -> str:
    return tiny_run().name


def test_the_table_of_runs(tiny: Viewer, run_name: str) -> None:
    about = get(tiny, "/api/about")
    assert about["read_only"] is True and about["dir"] == str(tiny_run().parent) and about["price_per_hour"] == 3.6
    runs = {row["id"]: row for row in get(tiny, "/api/runs")["runs"]}
    run = runs[run_name]
    assert run["kind"] == "run" and run["status"] == "completed" and run["steps"] == 2
    assert run["trajectories"] == len(list(tiny_run().rglob("*_*-*.json")))
    assert run["cost"] == pytest.approx(run["seconds"] / 1000)
    demonstrations = next(row for id, row in runs.items() if id.startswith("warmstart"))
    assert demonstrations["kind"] == "traj" and demonstrations["trajectories"] > 0


def test_a_run_has_curves_config_and_facets(tiny: Viewer, run_name: str) -> None:
    page = get(tiny, "/api/run", run=run_name)
    curves = {curve["name"]: curve for curve in page["curves"]}
    lines = [json.loads(line) for line in (tiny_run() / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert curves["reward"]["y"] == [line["reward"] for line in steps] and curves["reward"]["x"] == [1, 2]
    assert curves["reward"]["group"] == "reward" and curves["reward"]["unit"] == "reward"
    assert curves["learner/grad_norm"]["group"] == "gradient" and curves["task/arith/reward"]["group"] == "task"
    assert page["ledger"]["columns"]["trained"] == [line["ledger"]["trained"] for line in steps]
    assert [e["name"] for e in page["evaluations"]] == ["before", "step_0001", "step_0002", "after"]
    assert page["evaluations"][0]["reward"]["mean"] == lines[0]["reward"]["mean"]
    assert ["model.name", "tiny:llama"] in page["config"] and page["steps"] == [0, 1]
    assert {"step_0000", "step_0001", "evaluations/before"} <= set(page["facets"]["sources"])
    assert page["facets"]["versions"] == [0, 2] and "done" in page["facets"]["endings"]
    assert get(tiny, "/api/names")["reward"]["unit"] == "reward"


def test_every_episode_of_a_real_run_opens(tiny: Viewer, run_name: str) -> None:
    found = rows(tiny, run=run_name)
    assert len(found) > 20
    for row in found:
        told = get(tiny, "/api/trajectory", run=row["run"], id=row["id"])
        assert len(told["turns"]) == 1 and told["reward"] == row["reward"] and told["task"]["id"] == row["task"]
        assert told["training"]["fate"] == row["fate"]
        tokens = get(tiny, "/api/tokens", run=row["run"], id=row["id"])
        assert tokens["tokenizer"] == "exact" and tokens["branches"] == 1
        assert sum(token["train"] for token in tokens["tokens"]) == row["tokens"]
        said = "".join(t["t"] for t in tokens["tokens"] if t["turn"] == 0)
        assert said.removesuffix("<|im_end|>") == told["turns"][0]["reply"]


def test_tokens_have_the_numbers_of_the_files(tiny: Viewer, run_name: str) -> None:
    lines = [json.loads(line) for p in tiny_run().glob("tokens/*.jsonl") for line in p.read_text().splitlines()]
    trained = next(line for line in lines if line["fate"] == "trained")
    view = get(tiny, "/api/tokens", run=run_name, id=trained["id"])
    own = [token for token in view["tokens"] if token["train"]]
    assert [t["tlp"] for t in own] == pytest.approx(trained["logprobs"][0], rel=1e-3)
    assert [t["gap"] for t in own] == pytest.approx([t["tlp"] - t["lp"] for t in own], abs=1e-4)
    assert [t["adv"] for t in own] == pytest.approx([trained["advantage"]] * len(own), rel=1e-3)
    if "entropies" in trained:
        assert [t["entropy"] for t in own] == pytest.approx(trained["entropies"][0], rel=1e-3)
    assert view["reasons"][own[0]["why"]].startswith("sampled, trained with advantage")
    assert view["reasons"][view["tokens"][0]["why"]] == "part of the prompt: seen, never trained"
    silent = next(line for line in lines if line["fate"] == "zero advantage")
    view = get(tiny, "/api/tokens", run=run_name, id=silent["id"])
    assert any("all 4 of its group scored the same" in reason for reason in view["reasons"])
    held_out = rows(tiny, run=run_name, source="evaluations/before")[0]
    view = get(tiny, "/api/tokens", run=run_name, id=held_out["id"])
    assert "Held out: nothing of it is trained on." in view["reasons"]


def test_a_group_side_by_side(tiny: Viewer, run_name: str) -> None:
    row = rows(tiny, run=run_name, source="step_0001")[0]
    group = get(tiny, "/api/group", run=run_name, source="step_0001", task=row["task"])
    assert len(group["members"]) == 4 and group["prompt"] == f"{row['task']}="
    replies = [member["turns"][0]["reply"] for member in group["members"]]
    same = next(i for i in range(99) if len({reply[i : i + 1] for reply in replies}) > 1 or i > max(map(len, replies)))
    assert group["diverge"] == ({"turn": 0, "chars": same} if len(set(replies)) > 1 else None)
    told = get(tiny, "/api/trajectory", run=run_name, id=row["id"])
    assert told["group"]["size"] == 4
    assert told["group"]["mean"] == pytest.approx(sum(m["reward"] for m in group["members"]) / 4)


def test_neighbours_and_raw(tiny: Viewer, run_name: str) -> None:
    found = rows(tiny, run=run_name, sort="reward")
    beside = get(tiny, "/api/neighbours", run=run_name, id=found[1]["id"], sort="reward")
    assert (beside["place"], beside["total"]) == (2, len(found))
    assert (beside["previous"]["id"], beside["next"]["id"]) == (found[0]["id"], found[2]["id"])
    raw = ask(tiny, "/api/raw", run=run_name, id=found[0]["id"])
    assert raw.json["id"] == found[0]["id"].rpartition("/")[2] and "attachment" in raw.headers["content-disposition"]


def test_the_page_and_its_script_are_served(tiny: Viewer) -> None:
    page = ask(tiny, "/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe-inline" not in page.headers["content-security-policy"].partition("script-src")[2].split(";")[0]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert ask(tiny, "/static/index.html").status == 200
    script = ask(tiny, "/plotly.js")
    assert (
        script.status == 200 and b"plotly" in script.body[:2000] and script.headers["content-type"].startswith("text/")
    )


def test_errors_are_sentences(tiny: Viewer, run_name: str) -> None:
    for path, values, status in (
        ("/api/run", {"run": "nope"}, 404),
        ("/api/run", {}, 400),
        ("/api/trajectory", {"run": run_name, "id": "nope"}, 404),
        ("/api/trajectories", {"sort": "x"}, 400),
        ("/api/trajectories", {"limit": "-1"}, 400),
        ("/api/tokens", {"run": run_name, "id": rows(tiny)[0]["id"], "branch": 9}, 404),
        ("/api/nothing", {}, 404),
    ):
        answer = ask(tiny, path, **values)
        assert answer.status in (status, 400), (path, values, answer.status)
        assert answer.json["error"].endswith(".") and answer.json["fix"].endswith(".")


# --- live ---------------------------------------------------------------------------------------------------


class Events:
    """An open stream of events, read by a thread."""

    def __init__(self, viewer: Viewer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
        self._connection.request("GET", "/api/events")
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self.seen: list[tuple[float, set[str]]] = []
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b"data: "):
                    self.seen.append((time.monotonic(), set(json.loads(line[6:])["runs"])))
        except (OSError, http.client.HTTPException):
            pass
        self.ended.set()

    def runs(self) -> set[str]:
        return set().union(*(runs for _, runs in self.seen))

    def wait_for(self, run: str, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while run not in self.runs() and time.monotonic() < deadline:
            time.sleep(0.02)

    def wait(self, count: int, seconds: float = 15.0) -> list[tuple[float, set[str]]]:
        deadline = time.monotonic() + seconds
        while len(self.seen) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.seen


@pytest.mark.slow
def test_a_run_that_is_being_written_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SECOND", 3.0)  # so that a reader who is late by one sees still who keeps to it
    run = start_run(tmp_path, status="running")
    save(run / "trajectories" / "step_0000", episode("a_0-0", ["the first"]))
    with serving(Options(tmp_path)) as viewer:
        events = Events(viewer)
        time.sleep(1.2)
        quiet = len(events.seen)
        save(run / "trajectories" / "step_0000", episode("b_0-1", ["the second"]))
        record(run, 0, [{"id": "a_0-0", "advantage": 0.5, "fate": "trained", "reward": 0.0}])
        events.wait(quiet + 1)
        assert events.seen[-1][1] == {run.name}
        deadline = time.monotonic() + 10
        wanted = {("a_0-0", "trained"), ("b_0-1", None)}  # two files, which may be looked at one after the other
        while (found := {(row["id"], row["fate"]) for row in rows(viewer)}) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found == wanted
        assert [row["id"] for row in rows(viewer, q='"the second"')] == ["b_0-1"]
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "train", "step": 0, "reward": 0.5}\n')
        alarm(run, "raised", 0)
        start_run(tmp_path, "exp1.9-arith-1115")
        events.wait_for("exp1.9-arith-1115")
        assert {"exp1.9-arith-1115", run.name} <= events.runs()
        assert get(viewer, "/api/run", run=run.name)["curves"][0]["y"] == [0.5]
        assert get(viewer, "/api/trajectory", run=run.name, id="a_0-0")["alarms"][0]["id"] == "F1"
        deadline = time.monotonic() + 30
        before = 0
        while (now := len(events.seen)) != before and time.monotonic() < deadline:  # the last of what happened
            before = now
            time.sleep(watch.SECOND + 1.5)
        assert now == before  # nothing happens, nothing is said
        times = [at for at, _ in events.seen]
        assert all(later - earlier > 1.5 for earlier, later in itertools.pairwise(times))
    assert events.ended.wait(5)  # the server lets go of open pages when it ends


def test_two_viewers_of_one_directory(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    save(run / "trajectories" / "step_0000", episode("a_0-0"))
    with serving(Options(tmp_path)) as first, serving(Options(tmp_path)) as second:
        events = Events(second)
        assert len(rows(first)) == len(rows(second)) == 1
        save(run / "trajectories" / "step_0000", episode("b_0-1"))
        events.wait(1)
        deadline = time.monotonic() + 10
        while len(rows(second)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(rows(second)) == 2
        time.sleep(2.5)  # what was said of the episode has been said
        said = len(events.seen)
        (run / "status.json").write_text('{"status": "failed", "why": "of this", "time": 1.8e9}')
        assert len(events.wait(said + 1)) > said and events.seen[-1][1] == {run.name}  # the index has nothing of it


# --- MLGym's recordings, the command ------------------------------------------------------------------------

TRAJ = {
    "environment": "titanic",
    "trajectory": [
        {
            "thought": "I write a model first.",
            "action": "create train.py",
            "response": "I write a model first.\n```\ncreate train.py\n```",
            "observation": "[File: train.py (1 lines total)]\n1:",
            "execution_time": 0.5,
        },
        {"thought": "", "action": "edit 1:1\nprint('α')\nend_of_edit\n", "response": "", "observation": "ok"},
        {"thought": "", "action": "validate", "response": "", "observation": "Evaluation Score: {'accuracy': 0.75}"},
    ],
    "history": [
        {"role": "system", "content": "You do research."},
        {"role": "user", "content": "Beat the baseline on titanic."},
        {"role": "assistant", "content": "I write a model first."},
    ],
    "info": {"exit_status": "submitted", "score": [{"accuracy": 0.75}, {"accuracy": 0.8}]},
}


def test_recordings_of_mlgym(tmp_path: Path) -> None:
    directory = tmp_path / "model__titanic__default"
    directory.mkdir()
    (directory / "run_0.traj").write_text(json.dumps(TRAJ))
    (directory / "broken.traj").write_text("{")
    with serving(Options(tmp_path)) as viewer:
        (run,) = get(viewer, "/api/runs")["runs"]
        assert (run["kind"], run["trajectories"]) == ("traj", 2)
        assert [row["id"] for row in rows(viewer, q="baseline")] == ["run_0"]
        told = get(viewer, "/api/trajectory", run=run["id"], id="run_0")
        assert (told["task"]["id"], told["ending"], told["reward"]) == ("titanic", "submitted", 0.8)
        assert [message["role"] for message in told["turns"][0]["shown"]] == ["system", "user"]
        assert told["turns"][0]["thought"] == "I write a model first."
        assert (
            told["turns"][1]["files"][0]["path"] == "train.py" and "+print('α')" in told["turns"][1]["files"][0]["diff"]
        )
        assert told["turns"][2]["rewards"] == {"accuracy": 0.75}
        assert get(viewer, "/api/tokens", run=run["id"], id="run_0")["tokenizer"].startswith("missing: ")
        check_export(ask(viewer, "/export", run=run["id"], id="run_0"))
    with serving(Options(directory / "run_0.traj")) as viewer:
        assert [row["id"] for row in rows(viewer)] == ["run_0"]


def test_an_evaluation(tmp_path: Path) -> None:
    directory = tmp_path / "eval-oracle-1"
    save(directory / "episodes", episode("a_0-0", reward=1.0))
    interval = {"mean": 1.0, "low": 0.5, "high": 1.0, "tasks": 1}
    report = {"finished": True, "agent": "scripted:oracle", "model": "", "split": "test", "means": {"reward": interval}}
    (directory / "evaluation.json").write_text(json.dumps(report))
    with serving(Options(tmp_path)) as viewer:
        (run,) = get(viewer, "/api/runs")["runs"]
        assert (run["kind"], run["status"], run["reward_last"]) == ("evaluation", "completed", 1.0)
        told = get(viewer, "/api/trajectory", run=run["id"], id="a_0-0")
        assert told["source"] == "episodes" and told["training"] is None
        tokens = get(viewer, "/api/tokens", run=run["id"], id="a_0-0")
        assert tokens["tokenizer"].startswith("missing: ") and tokens["tokens"][0]["t"].startswith("[")
        page = get(viewer, "/api/run", run=run["id"])
        assert page["curves"] == [] and page["evaluations"][0]["reward"] == {"mean": 1.0, "low": 0.5, "high": 1.0}


@pytest.mark.slow
def test_the_command_serves_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    start_run(tmp_path)
    command = [sys.executable, "-m", "airloop.cli", "view", str(tmp_path), "--no-open", "--price-per-hour", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", lines[1])[1])  # type: ignore[index]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/api/about")
        assert json.loads(connection.getresponse().read())["price_per_hour"] == 2
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0 and errors == ""
    finally:
        process.kill()
        process.wait()


def test_wrong_use_is_a_sentence(air: Any, tmp_path: Path) -> None:
    for words, said in (
        ((tmp_path / "none",), "There is nothing at"),
        ((tmp_path, "--token", "short"), "can be guessed"),
        ((tmp_path, "--host", "no.such.host.invalid"), "cannot listen"),
        ((tmp_path, "--run", "exp1"), "in the terminal"),
    ):
        code, _, errors = air("view", *words, "--no-open")
        assert code == 1 and said in errors and "fix:" in errors, errors
    (tmp_path / "notes.txt").write_text("")
    assert "no recorded episode" in air("view", tmp_path / "notes.txt", "--no-open")[2]


def test_names_with_any_sign_can_be_asked_for(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a b&c#d", "exp1.0-ä%2f?-1115")
    save(run / "trajectories" / "step_0000", episode("a_0-0"))
    with serving(Options(tmp_path)) as viewer:
        (row,) = rows(viewer)
        assert row["run"] == "a b&c#d/exp1.0-ä%2f?-1115"
        assert ask(viewer, f"/api/trajectory?run={quote(row['run'])}&id={row['id']}").status == 200
