"""Sinks: the same names everywhere, and one that fails, hangs or is missing never stops a run."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.logged_runs import logged_run, scalars, texts, wandb_history, wandb_records
from support.tiny_runs import write_config

from airloop.config import load_config
from airloop.errors import AirError
from airloop.runs.run import Run
from airloop.sinks import wandb_sink
from airloop.sinks.samples import CHARACTERS, step_samples
from airloop.sinks.tensorboard_sink import TensorboardConfig, TensorboardSink
from airloop.sinks.wandb_sink import WandbConfig
from airloop.training import start
from airloop.types import Alarm
from airloop.watch import sinks
from airloop.watch.display.display import Display
from airloop.watch.sinks import BackgroundSink, Watchers, flat_line, logged, open_sinks

LINE: dict[str, Any] = {"kind": "train", "step": 3, "learner": {"loss": 0.5}, "reward": None, "rewards": [1.0]}
ALARM = Alarm("G1", "stall", "note", 3, "seen", "why", "fix")


class Seen(Display):
    """What is said is kept; the rest is as it is without a terminal."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True), quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, metrics: dict[str, Any]) -> None: ...

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


class Faulty:
    """Breaks in one of its methods: by raising, or by never coming back until it is let go."""

    name = "Faulty"
    url: str | None = None

    def __init__(self, place: str, fault: Callable[[], None]) -> None:
        self.place, self.fault, self.calls = place, fault, list[str]()

    def _do(self, place: str) -> None:
        self.calls.append(place)
        if place == self.place:
            self.fault()

    def open(self) -> str:
        self._do("open")
        return "Faulty: open"

    def step(self, flat: dict[str, float], step: int) -> None:
        self._do("step")

    def evaluated(self, flat: dict[str, float], step: int) -> None:
        self._do("evaluated")

    def alarm(self, alarm: Alarm) -> None:
        self._do("alarm")

    def close(self) -> None:
        self._do("close")


def test_names_are_the_path_to_the_number() -> None:
    assert flat_line(LINE) == {"train/step": 3.0, "train/learner/loss": 0.5}
    assert flat_line({"kind": "eval", "split": "test", "reward": {"mean": 1}}) == {"eval/test/reward/mean": 1.0}


def _raise() -> None:
    raise ConnectionError("provoked")


@pytest.mark.parametrize("place", ["open", "step", "evaluated", "alarm", "close"])
def test_a_sink_that_fails_is_left_out_and_named(place: str) -> None:
    seen, faulty = Seen(), Faulty(place, _raise)
    beside = BackgroundSink(faulty, seen.say)
    watchers = Watchers(seen, [beside])
    for _ in range(2):
        watchers.step(LINE)
        watchers.evaluated(LINE | {"kind": "eval", "split": "test"})
        watchers.alarm(ALARM)
    beside.close(5.0)
    notes = [text for text in seen.said if text.startswith("note: Faulty is left out from now on: ConnectionError")]
    assert len(notes) == 1 and faulty.calls.count(place) == 1 and faulty.calls[-1] == place


def test_a_library_that_exits_ends_its_sink_and_says_so() -> None:
    seen = Seen()
    beside = BackgroundSink(Faulty("open", lambda: sys.exit(3)), seen.say)
    beside.wait_open(5.0)
    beside.close(5.0)
    assert seen.said == ["note: Faulty is left out from now on: SystemExit: 3. metrics.jsonl has everything."]


@pytest.mark.parametrize("place", ["open", "step", "close"])
def test_a_sink_that_hangs_holds_nothing_up(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "BEHIND", 20)
    let_go, seen = threading.Event(), Seen()

    def hang() -> None:
        let_go.wait(30)

    beside = BackgroundSink(Faulty(place, hang), seen.say)
    watchers = Watchers(seen, [beside])
    began = time.monotonic()
    beside.wait_open(0.2)
    for _ in range(10 if place == "close" else 50):
        watchers.step(LINE)
    beside.close(0.3)
    assert time.monotonic() - began < 15
    notes = [text for text in seen.said if "is left out from now on" in text]
    assert len(notes) == 1 and ("did not close" if place == "close" else "messages behind") in notes[0]
    let_go.set()


@pytest.mark.long
def test_without_a_key_wandb_is_offline_and_one_line_says_so() -> None:
    run, said = logged_run()
    (line,) = [line for line in said.splitlines() if "Weights & Biases" in line]
    assert line.startswith("Weights & Biases: offline (no key: WANDB_API_KEY is not set and ")
    assert "; to upload: wandb sync " in line and Path(line.split("wandb sync ")[1]).parent == run / "wandb"
    assert "is left out from now on" not in said


def test_every_sink_has_every_number_of_metrics_jsonl_under_the_same_name() -> None:
    run, _ = logged_run()
    lines = Run.open(run).metrics()
    wanted: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in flat_line(line).items():
            wanted.setdefault(name, {})[line["step"] + (line["kind"] == "train")] = value
    history = wandb_history(run)
    in_wandb: dict[str, dict[int, float]] = {}
    for call in history:
        for name, value in call.items():
            if name != "step" and isinstance(value, int | float):
                in_wandb.setdefault(name, {})[call["step"]] = value
    in_tensorboard = {name: dict(values) for name, values in scalars(run).items()}
    ours = {name: v for name, v in in_wandb.items() if not name.startswith(("_", "alarm/"))}
    assert ours == wanted
    assert {name for name in in_tensorboard if not name.startswith("alarm/")} == wanted.keys()
    for name, values in wanted.items():
        for step, value in values.items():
            assert math.isclose(in_tensorboard[name][step], value, rel_tol=1e-6, abs_tol=1e-30), name


def test_sample_trajectories_are_tables_and_alarms_are_alerts() -> None:
    run, _ = logged_run()
    tables = [call["samples/trajectories"] for call in wandb_history(run) if "samples/trajectories" in call]
    assert len(tables) == 2 and all(t["_type"] == "table-file" and t["nrows"] == 2 for t in tables)
    (folder,) = run.glob("wandb/offline-run-*/files")
    table = json.loads((folder / tables[0]["path"]).read_text())
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    assert row["step"] == 1 and (run / "trajectories/step_0000" / f"{row['id']}.json").is_file()
    assert row["conversation"].startswith("[system]") or row["conversation"].startswith("[user]")
    assert "[assistant]" in row["conversation"] and row["turns"] == 1
    raised = [a["id"] for a in Run.open(run).alarms() if a["event"] == "raised"]
    alerts = [r.alert.title.split()[0] for r in wandb_records(run) if r.WhichOneof("record_type") == "alert"]
    assert alerts == raised
    shown = texts(run)
    assert len(shown["samples/trajectories/0"]) == 2 and "[assistant]" in shown["samples/trajectories/0"][0]
    assert {name.split("/")[1] for name in shown if name.startswith("alarm/")} == set(raised)
    assert 'name = "tiny:llama"' in shown["config"][0]


def test_a_wandb_run_has_its_team_its_group_its_words_and_what_was_trained() -> None:
    run, _ = logged_run()
    records = list(wandb_records(run))
    said = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (said.entity, said.project, said.run_group, said.notes) == ("team", "test", "sums", "why")
    assert list(said.tags) == ["one", "two"]
    made = [r.request.log_artifact.artifact for r in records if r.WhichOneof("record_type") == "request"]
    made = [r.artifact for r in records if r.WhichOneof("record_type") == "artifact"] + [a for a in made if a.name]
    (artifact,) = [a for a in made if a.type == "model"]
    assert artifact.name.endswith("-adapter") and json.loads(artifact.metadata)["step"] == 2
    kept = {entry.path: entry.size for entry in artifact.manifest.contents}
    adapter = run / "checkpoints" / "step_2" / "adapter"
    assert kept == {file.name: file.stat().st_size for file in adapter.iterdir()}


def test_a_run_without_a_checkpoint_has_no_weights_to_keep(tmp_path: Path) -> None:
    assert wandb_sink._weights(tmp_path) is None
    (tmp_path / "checkpoints" / "step_9" / "adapter").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_10" / "model").mkdir(parents=True)
    assert wandb_sink._weights(tmp_path) == (10, tmp_path / "checkpoints" / "step_10" / "model")


def test_samples_span_the_rewards_and_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "trajectories/step_0000").mkdir(parents=True)
    lines = []
    for reward in (3.0, 1.0, 2.0, 5.0, 4.0):
        turn = {"shown": [{"role": "user", "content": "x" * 50_000}], "reply": {"role": "assistant", "content": "ok"}}
        episode = {"task": {"id": "t"}, "ending": "done", "turns": [turn | {"observations": [{"text": "the end"}]}]}
        (tmp_path / f"trajectories/step_0000/e{reward:.0f}.json").write_text(json.dumps(episode))
        lines.append({"id": f"e{reward:.0f}", "reward": reward, "advantage": 0.5, "fate": "trained"})
    lines.append({"id": "lost", "fate": "infra_error"})
    (tmp_path / "tokens/step_0000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [s.reward for s in step_samples(tmp_path, 0, 3)] == [1.0, 3.0, 5.0]
    assert [s.reward for s in step_samples(tmp_path, 0, 1)] == [3.0]
    assert len(step_samples(tmp_path, 0, 20)) == 5 and step_samples(tmp_path, 0, 0) == []
    text = step_samples(tmp_path, 0, 1)[0].conversation
    assert len(text) < CHARACTERS + 100 and text.endswith("the end") and "characters …" in text
    assert step_samples(tmp_path, 7, 3) == []


def test_a_resumed_run_forgets_what_tensorboard_had_of_the_steps_it_repeats(tmp_path: Path) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path))]), "arith")
    for first, last, value in ((0, 4, 1.0), (2, 3, 2.0)):
        run.first_step = first
        sink = TensorboardSink(TensorboardConfig(samples=0), logged(run))
        sink.open()
        for step in range(first, last):
            sink.step({"train/reward": value}, step)
        sink.close()
        time.sleep(1.1)  # event files are ordered by the second in their names
    run.close()
    assert scalars(run.path)["train/reward"] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_a_run_killed_before_its_first_checkpoint_begins_anew_in_tensorboard(tmp_path: Path) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path))]), "arith")
    for value in (1.0, 2.0):
        sink = TensorboardSink(TensorboardConfig(samples=0), logged(run))
        sink.open()
        sink.evaluated({"eval/test/reward/mean": value}, 0)
        sink.step({"train/reward": value}, 0)
        sink.close()
        time.sleep(1.1)  # event files are ordered by the second in their names
    run.close()
    assert scalars(run.path) == {"eval/test/reward/mean": [(0, 2.0)], "train/reward": [(1, 2.0)]}


def test_of_a_resumed_offline_run_every_part_is_to_be_uploaded(tmp_path: Path) -> None:
    first, second = (tmp_path / f"offline-run-{n}-id" for n in (1, 2))
    first.mkdir()
    assert wandb_sink._parts(str(first)) == str(first)
    second.mkdir()
    assert wandb_sink._parts(str(second)) == str(tmp_path / "offline-run-*")


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_package_is_refused_before_there_is_a_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(["@", str(write_config(tmp_path, extra=f"[{name}]\n"))])
    monkeypatch.setitem(sys.modules, name, None)  # as Python sees a package that is not there
    with pytest.raises(AirError, match=rf"the package {name} is not installed(.|\n)*pip install (.|\n)*{name}"):
        start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True)
    assert not list((tmp_path / "outputs").glob("exp*"))


def test_a_folder_of_the_same_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airloop.watch.sinks import _installed

    (tmp_path / "air_no_such_package").mkdir()  # as `wandb` is, where W&B was used before
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not _installed("air_no_such_package") and _installed("wandb")


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Takes every connection and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        yield url


def test_a_wandb_server_that_never_answers_holds_nothing_up(
    silent_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_sink, "INIT_S", 2.0)
    monkeypatch.setattr(sinks, "OPEN_S", 0.2)
    run = Run.create(load_config(["@", str(write_config(tmp_path, extra="[wandb]\n"))]), "arith")
    seen = Seen()
    with open_sinks(run.config, run, seen) as watchers:
        began = time.monotonic()
        watchers.step(LINE)
        assert time.monotonic() - began < 1
    run.close()
    assert "note: Weights & Biases has not answered in 0 s; the run does not wait for it" in seen.said
    assert [text for text in seen.said if text.startswith("note: Weights & Biases is left out from now on: ")]
    assert "sink_urls" not in run.status()


def test_where_a_sink_can_be_looked_at_is_noted_by_its_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path, extra="[tensorboard]\n"))]), "arith")
    run.note(sink_urls={"Other": "http://127.0.0.1:1"})  # of a session before this one
    monkeypatch.setattr(TensorboardSink, "url", "http://127.0.0.1:6006")
    with open_sinks(run.config, run, Seen()):
        pass
    run.close()
    assert run.status()["sink_urls"] == {"Other": "http://127.0.0.1:1", "TensorBoard": "http://127.0.0.1:6006"}


def test_two_runs_never_share_a_wandb_run_and_a_resumed_one_keeps_its_own(tmp_path: Path) -> None:
    config = load_config(["@", str(write_config(tmp_path))])
    runs = [Run.create(config.model_copy(update={"output_dir": str(tmp_path / side)}), "arith") for side in "ab"]
    ids = []
    for run in (*runs, runs[0]):
        wandb_sink.WandbSink(WandbConfig(), logged(run))
        ids.append(run.status()["wandb_id"])
        run.close()
    assert runs[0].name == runs[1].name and ids[0] != ids[1] and ids[2] == ids[0]


@pytest.mark.parametrize(
    ("offline", "mode", "key", "online"),
    [
        (None, "", "", False),
        (None, "", "k" * 40, True),
        (None, "offline", "k" * 40, False),
        (True, "", "k" * 40, False),
        (False, "offline", "k" * 40, True),
    ],
)
def test_online_only_with_a_key_and_where_nobody_says_otherwise(
    offline: bool | None, mode: str, key: str, online: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert wandb_sink._online(WandbConfig(offline=offline))[0] is online
