"""What came of a run, read from runs of every state and from what is hardly a run any more."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tiny_runs import tiny_run

from airloop.config import load_config
from airloop.errors import AirError
from airloop.eval.baselines import find_baselines, format_baselines, grouped
from airloop.files import append_line, write_json
from airloop.logbook.log_export import markdown
from airloop.logbook.log_text import format_list, format_page
from airloop.logbook.logbook import run_page
from airloop.runs.entries import add_entry
from airloop.runs.results import config_diff, run_results
from airloop.runs.run import Run

NAMES = """
name path task env model status why started ended seconds steps max_steps seed goal parent superseded_by reward_first
reward_last reward_trend success_name success_first success_last success_trend mean_improvement best_improvement
eval_success_before eval_success_after eval_before eval_after
tokens_per_second peak_memory_bytes sandbox_errors alarms alarm_ids price_per_hour cost sink_urls fault artefacts
proofs problems
"""
KEYS = {*NAMES.split()}


def new_run(directory: Path, *flags: str, task: str = "arith") -> Run:
    env = ["--orchestrator.env.0.id", "arith", "--model.name", "tiny:llama"]
    return Run.create(load_config([*env, "--output_dir", str(directory), *flags]), task)


def step(number: int, reward: float, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": number, "reward": reward, **more}


def test_a_finished_run() -> None:
    found = run_results(tiny_run())
    metrics = Run.open(tiny_run()).metrics("train")
    assert set(found) == KEYS and found["problems"] == []
    assert (found["name"], found["task"], found["env"], found["model"]) == (
        tiny_run().name,
        "arith",
        ["arith"],
        "tiny:llama",
    )
    assert (found["status"], found["steps"], found["max_steps"], found["proofs"]) == ("completed", 2, 2, "skipped")
    assert found["reward_trend"] == [m["reward"] for m in metrics]
    assert (found["reward_first"], found["reward_last"]) == (metrics[0]["reward"], metrics[1]["reward"])
    assert set(found["eval_before"]) == {"mean", "low", "high"} and found["eval_after"] is not None
    assert found["tokens_per_second"] > 0 and found["peak_memory_bytes"] > 10 * 2**20 and found["sandbox_errors"] == 0
    assert (found["success_name"], found["success_last"]) == ("correct", metrics[1]["success"])
    assert found["success_trend"] == [m["success"] for m in metrics] and set(found["eval_success_after"]) == {
        *found["eval_before"]
    }
    assert found["cost"] is None and found["parent"] is None
    assert 0 < found["seconds"] < 600 and found["ended"] - found["started"] == pytest.approx(found["seconds"])
    assert {"summary.txt", "learning.png", "evaluations/after", "checkpoints/step_2"} <= {*found["artefacts"]}
    assert all((tiny_run() / name).exists() for name in found["artefacts"])


def test_running_then_killed_then_resumed_and_stopped(tmp_path: Path) -> None:
    run = new_run(tmp_path, "--logbook.price_per_hour", "3600")
    assert run_results(run.path)["status"] == "running" and run_results(run.path)["ended"] is None
    append_line(run.path / "metrics.jsonl", step(0, 1.0))
    run.close()  # as when the process is gone
    began = run.status()["sessions"][0][0]
    os.utime(run.path / "metrics.jsonl", (began + 50, began + 50))
    killed = run_results(run.path)
    assert killed["status"] == "killed" and "no process" in killed["why"]
    assert killed["seconds"] == pytest.approx(50) and killed["cost"] == pytest.approx(50)

    again = Run.open(run.path)
    again.lock()
    status = json.loads((run.path / "status.json").read_text())
    assert status["sessions"][0][1] == pytest.approx(began + 50) and status["sessions"][1][1] is None
    assert run_results(run.path)["status"] == "running"
    status["sessions"][1][0] = began + 1000  # a while later; what lies between costs nothing
    write_json(run.path / "status.json", status)
    again.set_status("stopped", "interrupted")
    again.close()
    status = json.loads((run.path / "status.json").read_text())
    status["sessions"][1][1] = began + 1010
    write_json(run.path / "status.json", status)
    stopped = run_results(run.path)
    assert (stopped["status"], stopped["why"]) == ("stopped", "interrupted")
    assert stopped["seconds"] == pytest.approx(60)


def test_a_run_that_was_killed_in_its_supervised_start_ran_until_it_was_last_kept(tmp_path: Path) -> None:
    """On a terminal nothing is logged for minutes, and a budget counts them."""
    run = new_run(tmp_path)
    run.close()
    began = run.status()["sessions"][0][0]
    (run.path / "warmstart" / "warmstart-arith-0123456789").mkdir(parents=True)
    os.utime(run.path / "warmstart" / "warmstart-arith-0123456789", (began + 80, began + 80))
    assert run_results(run.path)["seconds"] == pytest.approx(80)


def test_a_run_that_is_resumed_runs_before_it_says_so(tmp_path: Path) -> None:
    for said in ("stopped", "completed", "planned"):
        run = new_run(tmp_path)
        run.set_status(said, "before")
        run.close()
        assert run_results(run.path)["status"] == said
        again = Run.open(run.path)
        again.lock()
        assert run_results(run.path)["status"] == "running"  # while its model is loaded, too
        again.close()


def test_a_run_that_never_began_has_no_date_and_cost_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_json(run.path / "status.json", {"status": "planned", "why": "", "time": time.time(), "sessions": []})
    run.close()
    add_entry(run.path, "abandoned", "")
    found = run_results(run.path)
    assert (found["status"], found["started"], found["ended"], found["seconds"]) == ("abandoned", None, None, None)


def test_what_was_read_back_after_a_restart_is_no_throughput(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for number, (seconds, reused) in enumerate([(9.0, 0), (9.0, 0), (0.01, 16), (4.0, 3)]):
        facts = {"times": {"sampling": seconds, "training": 1.0}, "rollout": {"reused": reused}}
        append_line(run.path / "metrics.jsonl", step(number, 1.0, ledger={"tokens": 1000}, **facts))
    assert run_results(run.path)["tokens_per_second"] == pytest.approx(100)


def test_a_run_with_a_fault_is_marked_wherever_it_is_listed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.note(lab={"variant": "changed", "seed": 0, "fault": "mask"})
    assert run_results(run.path)["fault"] == "mask"  # planned: it has none yet
    run.note(fault={"name": "mask", "text": "a blind trainer"})
    run.close()
    page = run_page(run.path)
    assert page["fault"] == "mask: a blind trainer"
    for text in (format_list([page], tmp_path, 100), format_page(page, 100), markdown([page], [], tmp_path)):
        assert "fault on purpose" in text.lower() and "mask: a blind trainer" in text


def test_a_web_address_is_a_link_and_nothing_else(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for address, shown in {
        "https://wandb.ai/a/b?c=d": "<https://wandb.ai/a/b?c=d>",
        "https://a> <script>alert(1)</script>": r"https://a> \<script>alert(1)\</script>",
        "javascript:alert(1)": "javascript:alert(1)",
    }.items():
        run.note(sink_urls={"Lines": address})
        assert f"- **Lines:** {shown}\n" in markdown([run_page(run.path)], [], tmp_path)
    add_entry(run.path, "note", "&lt;b&gt; R&D")
    assert r"\&lt;b\&gt; R&D" in markdown([run_page(run.path)], [], tmp_path)
    run.close()


def test_an_address_of_metrics_is_named_by_its_sink(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.note(wandb_url="https://wandb.ai/a")  # as older runs noted it
    assert run_results(run.path)["sink_urls"] == {"Weights & Biases": "https://wandb.ai/a"}
    run.note(sink_urls={"Lines": "https://lines.example/b", "Broken": 7})
    assert "  logged to Lines: https://lines.example/b\n" in format_page(run_page(run.path), 100)
    assert [*run_results(run.path)["sink_urls"]] == ["Weights & Biases", "Lines"]
    run.note(sink_urls=[])
    assert [*run_results(run.path)["sink_urls"]] == ["Weights & Biases"]
    run.close()


def test_to_ask_whether_a_run_is_held_does_not_keep_it_from_being_taken(tmp_path: Path) -> None:
    import threading

    run = new_run(tmp_path)
    run.close()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            run_results(run.path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(30):
            taken = Run.open(run.path)
            taken.lock()
            taken.close()
    finally:
        stop.set()
        thread.join()


def test_first_and_last_never_overlap_and_the_trend_is_short(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for number in range(400):
        append_line(run.path / "metrics.jsonl", step(number, number / 400, best={"improvement": -number}))
    found = run_results(run.path)
    assert found["reward_first"] == pytest.approx(2 / 400) and found["reward_last"] == pytest.approx(397 / 400)
    assert len(found["reward_trend"]) == 60 and found["reward_trend"] == sorted(found["reward_trend"])
    assert found["best_improvement"] == 0 and found["mean_improvement"] is None
    short = new_run(tmp_path)
    for number, reward in enumerate((0.0, 0.2, 1.0, 0.6)):
        append_line(short.path / "metrics.jsonl", step(number, reward))
    found = run_results(short.path)
    assert (found["reward_first"], found["reward_last"]) == (pytest.approx(0.1), pytest.approx(0.8))


def test_improvement_memory_and_errors(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for number in range(2):
        line = step(
            number,
            0.0,
            metrics={"improved": number / 2},
            components={"improvement": 0.1 * (number + 1)},
            best={"improvement": 0.9 - number},
            rollout={"infra_errors": 3},
            memory={"used": 10, "peak": 20 + number, "gpu_used": 5, "gpu_peak": 7},
            ledger={"tokens": 100},
            times={"sampling": 3.0, "training": 1.5, "sync": 0.5},
        )
        append_line(run.path / "metrics.jsonl", line)
    found = run_results(run.path)
    # A directory that does not say what its success is: the first of what environments have called it.
    assert (found["success_name"], found["success_first"], found["success_last"]) == ("improved", 0.0, 0.5)
    assert (found["mean_improvement"], found["best_improvement"]) == (0.2, 0.9)
    assert (found["sandbox_errors"], found["peak_memory_bytes"]) == (6, 7 * 2**20)
    assert found["tokens_per_second"] == pytest.approx(20)


def test_a_training_step_writes_down_its_best_episode() -> None:
    line = Run.open(tiny_run()).metrics("train")[-1]
    assert line["best"].keys() == line["components"].keys()
    assert line["best"]["correct"] >= line["components"]["correct"]


def test_alarms_are_counted(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for event, name in (("raised", "E1"), ("cleared", "E1"), ("raised", "B9"), ("raised", "E1")):
        append_line(run.path / "alarms.jsonl", {"event": event, "id": name, "name": name.lower(), "step": 1})
    found = run_results(run.path)
    assert (found["alarms"], found["alarm_ids"]) == (3, ["E1", "B9"])


# --- parents ------------------------------------------------------------------------------------------------


def test_the_parent_is_the_latest_earlier_run_of_the_task(tmp_path: Path) -> None:
    first, other = new_run(tmp_path), new_run(tmp_path, task="tune")
    planned = Run.create(load_config(["--output_dir", str(tmp_path)]), "arith", planned=True)
    second = new_run(tmp_path)
    far = new_run(tmp_path / "elsewhere", "--logbook.parent", str(first.path))
    named = new_run(tmp_path, "--logbook.parent", other.name)
    assert run_results(first.path)["parent"] is None and run_results(other.path)["parent"] is None
    assert run_results(second.path)["parent"] == first.name  # what is only planned has no results to follow
    assert run_results(planned.path)["status"] == "planned" and run_results(planned.path)["seconds"] is None
    assert run_results(named.path)["parent"] == other.name
    assert run_results(far.path)["parent"] == first.name
    for run in (first, second):  # runs of before there was a logbook: by their names
        (run.path / "logbook.json").unlink()
    assert run_results(second.path)["parent"] == first.name and run_results(first.path)["parent"] is None
    shutil.rmtree(first.path)
    assert run_results(far.path)["parent"] == first.name  # gone, but known


def test_a_parent_that_is_no_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(AirError, match=r"parent = 'exp1.9-arith' is no run") as error:
        new_run(tmp_path, "--logbook.parent", "exp1.9-arith")
    assert f'parent = "{run.name}"' in error.value.fix and "left out" in error.value.fix
    assert [p.name for p in tmp_path.iterdir()] == [run.name]


def test_major_is_the_series_in_the_name(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, "--logbook.major", major) for major in ("1", "2", "2")]
    assert [run.name[:7] for run in runs] == ["exp1.0-", "exp2.0-", "exp2.1-"]
    with pytest.raises(AirError, match="logbook"):
        load_config(["--logbook.major", "-1"])
    with pytest.raises(AirError, match="logbook"):
        load_config(["--logbook.prize", "1"])


def test_config_diff_names_what_changed(tmp_path: Path) -> None:
    first = new_run(tmp_path / "a")
    flags = ["--trainer.optim.lr", "2e-5", "--trainer.loss.type", "rloo", "--orchestrator.env.0.args.max_number", "4"]
    second = new_run(tmp_path / "b", *flags, "--logbook.goal", "smaller")
    diff = {row["key"]: (row["parent"], row["here"]) for row in config_diff(second.path, first.path)}
    assert diff["trainer.optim.lr"] == (1e-4, 2e-5) and diff["trainer.loss.type"] == ("grpo", "rloo")
    assert diff["orchestrator.env.0.args.max_number"] == (None, 4)
    assert diff["trainer.loss.clip_low"] == (0.2, None)
    assert not {"output_dir", "logbook.goal"} & diff.keys()
    assert config_diff(first.path, first.path) == []
    (first.path / "config.toml").write_text("no TOML")
    assert config_diff(second.path, first.path) == []  # run_results says why
    assert "config.toml is not valid TOML" in run_results(first.path)["problems"][0]


# --- damage -------------------------------------------------------------------------------------------------

FILES = ("config.toml", "status.json", "metrics.jsonl", "alarms.jsonl", "logbook.json", "evaluation.json")
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, 1e308, float("nan"), float("inf"), -0.0, 253402300800])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["raised", "train", "eval", "running", "planned", "\x1b[31m", "\ud800", "superseded", "|"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def healthy() -> dict[str, bytes]:
    """The files of a real run with all there can be in it."""
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(Path(folder), "--logbook.goal", "a goal")
        run.close()
        shutil.copy(tiny_run() / "metrics.jsonl", run.path)
        append_line(run.path / "alarms.jsonl", {"event": "raised", "id": "E1", "name": "flat", "step": 1, "seen": "x"})
        add_entry(run.path, "note", "a note")
        add_entry(run.path, "superseded", "why", by="exp1.1-arith-1115")
        report = {"finished": True, "means": {"reward": {"mean": 0, "low": 0, "high": 0}}, "rows": [{"env": "a"}]}
        write_json(run.path / "evaluation.json", {**report, "kinds": [{"family": "a", "kind": "b", "reward": 1}] * 2})
        return {name: (run.path / name).read_bytes() for name in FILES}


def damaged(data: st.DataObject, name: str, whole: bytes) -> bytes | None:
    """One of the ways in which a file goes wrong; None: a directory is in its place."""
    way = data.draw(st.sampled_from(["kept", "cut", "bytes", "odd", "leaf", "directory"]), label=name)
    if way == "kept":
        return whole
    if way == "cut":
        return whole[: data.draw(st.integers(0, len(whole)))]
    if way == "bytes":
        return data.draw(st.binary(max_size=60))
    if way == "directory":
        return None
    if way == "odd" or name == "config.toml":
        return as_bytes(data.draw(ODD)) + b"\n"
    lines = whole.decode().strip().split("\n") if name.endswith("jsonl") else [whole.decode()]
    return "".join(json.dumps(with_odd_leaf(data, json.loads(line))) + "\n" for line in lines).encode()


def with_odd_leaf(data: st.DataObject, tree: Any) -> Any:
    if isinstance(tree, dict) and tree and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(tree)))
        return {**tree, key: with_odd_leaf(data, tree[key])}
    if isinstance(tree, list) and tree and data.draw(st.integers(0, 9)):
        place = data.draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], with_odd_leaf(data, tree[place]), *tree[place + 1 :]]
    return data.draw(ODD)


def as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_no_damage_breaks_a_listing(healthy: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exp1.3-arith-1115"
        path.mkdir()
        for name, whole in healthy.items():
            made = damaged(data, name, whole)
            (path / name).mkdir() if made is None else (path / name).write_bytes(made)
        check_that_all_can_be_shown(path)


def check_that_all_can_be_shown(path: Path) -> None:
    found = run_results(path)
    assert set(found) == KEYS
    json.dumps(found, allow_nan=False).encode()
    assert all(isinstance(problem, str) for problem in found["problems"])
    page = run_page(path)
    json.dumps(page, allow_nan=False).encode()
    baselines = find_baselines(path.parent)
    json.dumps(baselines, allow_nan=False).encode()
    shown = [
        format_list([found], path.parent, 100),
        format_page(page, 100),
        format_baselines(grouped(baselines), path.parent, 100),
        markdown([page], grouped(baselines), path.parent),
    ]
    for text in shown:
        assert "\x1b" not in text and "\x00" not in text
        text.encode()
    assert all(len(line) <= 100 for line in shown[0].splitlines())


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "a = " + "[" * 100_000])
def test_what_nests_without_end_is_a_problem_and_no_crash(tmp_path: Path, deep: str) -> None:
    for name in FILES:
        (tmp_path / name).write_text(deep + "\n")
    found = run_results(tmp_path)
    assert len(found["problems"]) >= 5
    check_that_all_can_be_shown(tmp_path)


def test_what_is_no_run_at_all(tmp_path: Path) -> None:
    assert run_results(tmp_path / "gone")["problems"][0] == "there is no such directory"
    found = run_results(tmp_path)
    assert set(found) == KEYS and "config.toml is missing" in found["problems"][0] and found["status"] is None
    os.mkfifo(tmp_path / "metrics.jsonl")  # whoever opens it waits for ever
    began = time.monotonic()
    assert "metrics.jsonl is not a file" in run_results(tmp_path)["problems"]
    assert time.monotonic() - began < 60


@example(b"\xff\xfe")
@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_metrics_of_any_bytes(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "metrics.jsonl").write_bytes(raw)
        assert json.loads(json.dumps(found := run_results(Path(folder)), allow_nan=False)) == found
