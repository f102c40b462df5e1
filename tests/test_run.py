"""A run's directory: naming, locking, killing, resuming, and the same run twice."""

from __future__ import annotations

import io
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import warm_process
from support.killed_runs import first_difference, flags, run_here, saved_episodes, what_happened
from support.tiny_runs import write_config
from support.warm_process import Process

from airloop import files
from airloop.config import load_config
from airloop.errors import AirError
from airloop.files import append_line, read_lines, whole_directory, write_json
from airloop.models import dtypes
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return what_happened(run_here(tmp_path_factory.mktemp("whole")))


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_bit_for_bit(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    assert first_difference(run_here(tmp_path), uninterrupted) is None
    assert len({reward for _, reward, _, _ in uninterrupted["steps"]}) > 1  # something did happen
    found = first_difference(run_here(tmp_path / "other", seed="1"), uninterrupted)
    assert found and found.startswith("episodes[0]: ")


def test_a_run_that_is_given_more_steps_is_judged_by_its_last_policy(tmp_path: Path) -> None:
    """Its first end has left an evaluation of the same name, by which everybody would read on."""
    run = start(load_config(["@", str(write_config(tmp_path))]), Display(quiet=True), skip_proofs=True).run
    assert {t.version for t in run.evaluation("after")} == {2}
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("max_steps = 2", "max_steps = 3"))
    start(run.config, Display(quiet=True), resume=run.path)
    again = Run.open(run.path)
    assert {t.version for t in again.evaluation("after")} == {3} and len(again.evaluation("after")) == 8
    assert {t.version for t in again.evaluation("aside_after_0")} == {2}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_deterministic_run_sets_what_its_bits_depend_on(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Whatever was left behind in the process: torch itself switches oneDNN off at a bf16 product without hardware."""
    torch.backends.mkldnn.set_flags(False)
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(False)
    assert first_difference(run_here(tmp_path), uninterrupted) is None
    assert torch.backends.mkldnn.set_flags()[:2] == (True, True) and torch.get_num_threads() == 1
    assert torch.get_float32_matmul_precision() == "highest" and torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(
    ("machine", "bf16", "onednn"), [("aarch64", False, False), ("aarch64", True, True), ("x86_64", False, True)]
)
def test_products_go_to_the_quicker_library_where_it_is_known(
    machine: str, bf16: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.mkldnn.set_flags(True)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: bf16)
    dtypes.choose_kernels()
    assert torch.backends.mkldnn.set_flags()[0] is onednn


def test_a_resumed_run_computes_with_as_many_threads_as_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run = run_here(tmp_path, max_steps="2", warmstart="none")
    assert torch.get_num_threads() == 2 == run.status()["arithmetic"]["threads"]
    kept = {**run.status()["arithmetic"], "processor": "abacus"}
    run.note(arithmetic=kept)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    said = io.StringIO()
    start(run.config, Display(Console(file=said, width=300), quiet=True), resume=run.path)
    assert torch.get_num_threads() == 2 and run.status()["arithmetic"] == kept
    assert "may differ in the last bits" in (run.path / "log.txt").read_text() + said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("when", [0, pytest.param(1, marks=pytest.mark.long)])
def test_G2_killed_at_any_moment_a_run_resumes_to_the_same_end(
    tmp_path: Path, uninterrupted: dict[str, Any], when: int
) -> None:
    """kill -9 after a random number of saved episodes, several times over, then to the end."""
    rng = random.Random(when)
    arguments = flags(tmp_path)
    for target in sorted(rng.sample(range(1, 130), 2)):
        process = Process(["train", "--skip-proofs", *arguments])
        deadline = time.monotonic() + 300
        while saved_episodes(tmp_path) < target and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["--resume", str(next(tmp_path.glob("exp*")))]
    done = warm_process.run(["train", "--skip-proofs", *arguments])
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("exp*"))) == 1
    assert first_difference(Run.open(next(tmp_path.glob("exp*"))), uninterrupted) is None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-C", "kill, as a background job of a script"])
def test_ctrl_c_stops_cleanly_with_everything_saved(tmp_path: Path, way: str) -> None:
    background = way != "Ctrl-C"
    words = ["train", "--skip-proofs", *flags(tmp_path, max_steps="500")]
    process = Process(words, stderr=True, interrupt=not background)
    deadline = time.monotonic() + 300
    while saved_episodes(tmp_path) < 20:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    if background:
        seen = saved_episodes(tmp_path)
        while saved_episodes(tmp_path) < seen + 10:  # Ctrl-C was for somebody else
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    run = Run.open(next(tmp_path.glob("exp*")))
    assert process.returncode == (143 if background else 130)
    assert "Traceback" not in errors and f"air train --resume {run.path}" in errors
    assert run.status()["status"] == "stopped"
    assert all(json.loads(p.read_text()) for p in run.path.rglob("trajectories/*/*.json"))


def test_the_same_config_goes_on_with_what_is_unfinished_and_with_nothing_else(tmp_path: Path, air: Any) -> None:
    """`make train` after a kill: nothing that was finished is repeated; after a whole run: a new one."""
    config = load_config(["--output_dir", str(tmp_path)])
    assert Run.unfinished(config) is None
    other = Run.create(load_config(["--output_dir", str(tmp_path), "--seed", "1"]), "tune")
    other.close()
    assert Run.unfinished(config) is None
    run = Run.create(config, "tune")
    assert Run.unfinished(config) is None  # we are at work on it
    run.close()
    assert Run.unfinished(config) == run.path
    run.change({"max_steps": 3})  # a budget of time has planned it
    assert Run.unfinished(config) == run.path
    run.set_status("stopped", "no signal for 20 steps")  # by an alarm: it would stop there again
    assert Run.unfinished(config) is None
    run.set_status("stopped", "interrupted")
    (other.path / "status.json").write_text("")  # somebody else's, damaged
    assert Run.unfinished(config) == run.path
    run.set_status("completed")
    assert Run.unfinished(config) is None
    words = flags(tmp_path / "out", max_steps="1")
    assert air("train", "--skip-proofs", "--continue", *words)[0] == 0
    first = next((tmp_path / "out").glob("exp*"))
    Run.open(first).set_status("stopped", "interrupted")
    code, _, errors = air("train", "--skip-proofs", "--continue", *words)
    assert code == 0 and "resuming" in errors and [*(tmp_path / "out").glob("exp*")] == [first]


def test_names_count_up_and_a_directory_is_never_overwritten(tmp_path: Path) -> None:
    """A9."""
    config = load_config(["--output_dir", str(tmp_path)])
    first, second = Run.create(config, "tune"), Run.create(config, "tune")
    day = time.strftime("%m%d")
    assert [first.name, second.name] == [f"exp1.0-tune-{day}", f"exp1.1-tune-{day}"]
    assert Run.create(config, "other/task", major=2).name == f"exp2.0-other-task-{day}"
    assert Run.create(config, "-".join(["environment"] * 40)).name.startswith("exp1.2-environment-")


def test_runs_of_two_tasks_made_at_once_never_share_a_number(tmp_path: Path) -> None:
    config = load_config(["--output_dir", str(tmp_path)])

    def make(task: str) -> None:
        for _ in range(15):
            Run.create(config, task, planned=True)

    threads = [threading.Thread(target=make, args=(task,)) for task in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(p.name.split(".")[1].split("-")[0]) for p in tmp_path.glob("exp*")) == [*range(45)]


def test_a_run_is_ours_until_it_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let go before, it would look killed to who asks, and could be taken."""
    held = []

    def close(self: Run) -> None:
        held.append(self.status()["status"])
        close_it(self)

    close_it = Run.close
    monkeypatch.setattr(Run, "close", close)
    start(load_config(["@", str(write_config(tmp_path))]), Display(quiet=True), skip_proofs=True)
    assert held == ["completed"]


def test_an_error_that_names_a_file_of_any_bytes_is_written_down(tmp_path: Path) -> None:
    run = Run.create(load_config(["--output_dir", str(tmp_path)]), "tune")
    run.set_status("failed", "no file 'a\udc80'")
    run.log("no file 'a\udc80'")
    run.close()
    assert run.status()["why"] == "no file 'a\\udc80'" and "a\\udc80" in (run.path / "log.txt").read_text()


def test_a_run_in_use_cannot_be_resumed_by_another_process(tmp_path: Path) -> None:
    run = Run.create(load_config(["--output_dir", str(tmp_path)]), "tune")
    with pytest.raises(AirError, match=r"in use by another process \(pid \d+\)"):
        Run.open(run.path).lock()
    run.close()
    Run.open(run.path).lock()


def test_resume_of_something_else_says_so(tmp_path: Path) -> None:
    with pytest.raises(AirError, match="is not a run"):
        Run.open(tmp_path)


def test_a_line_after_one_that_a_crash_has_cut_is_read(tmp_path: Path) -> None:
    """alarms.jsonl of a run that was killed while it wrote: the next alarm went to the end of the half line."""
    path = tmp_path / "alarms.jsonl"
    for half in (b'{"step": 1, "seen": "x', b"{" + b'"a": ' * 50_000):
        path.write_bytes(b'{"step": 0}\n' + half)
        append_line(path, {"step": 2, "seen": "ü"})
        assert read_lines(path) == [{"step": 0}, {"step": 2, "seen": "ü"}]
    path.write_bytes(b'{"step"')
    append_line(path, {"step": 3})
    assert read_lines(path) == [{"step": 3}]


def test_growing_lines_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parsed = tmp_path / "metrics.jsonl", []
    original = files._object
    monkeypatch.setattr(files, "_object", lambda text, where: parsed.append(text) or original(text, where))
    lines = files.GrowingLines(path, lambda line: line["kind"] == "eval")
    assert lines.read() == []
    for i in range(20):
        append_line(path, {"kind": "eval" if i % 2 else "train", "step": i})
        assert [line["step"] for line in lines.read()] == list(range(1, i + 1, 2))
    assert len(parsed) == 20
    with path.open("a") as file:
        file.write('{"kind": "eval"')  # by a process that is at it, or was killed
    assert len(lines.read()) == 10 and len(lines.read()) == 10
    append_line(path, {"kind": "eval", "step": 20})
    assert lines.read()[-1]["step"] == 20 and len(lines.read()) == 11
    files.write_text(path, '{"kind": "eval", "step": 7}\n')  # resumed from an earlier step
    assert [line["step"] for line in lines.read()] == [7]


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_line(path, {"step": 0})
    with path.open("a") as file:
        file.write('{"step": 1, "rew')
    assert read_lines(path) == [{"step": 0}]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    with whole_directory(target) as beside:
        (beside / "a").write_text("1")
    with pytest.raises(RuntimeError), whole_directory(target) as beside:
        (beside / "a").write_text("2")
        raise RuntimeError("killed half-way")
    assert (target / "a").read_text() == "1" and [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_G4_a_full_disk_is_a_sentence_and_leaves_whole_files(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        with pytest.raises(AirError, match="disk is full"):
            for i in range(100):
                write_json(small / f"{i}.json", {"text": "x" * 4000})
        left = list(small.iterdir())
        assert left and all(json.loads(p.read_text()) for p in left)
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_second_resume_leaves_the_running_one_alone(tmp_path: Path) -> None:
    run = Run.create(load_config(flags(tmp_path)), "arith")
    with pytest.raises(AirError, match="in use by another process"):
        start(run.config, Display(Console(quiet=True), quiet=True), resume=run.path)
    assert run.status()["status"] == "running" and not (run.path / "log.txt").exists()


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_here(tmp_path_factory.mktemp("four"), max_steps="4").path


@pytest.mark.long
@pytest.mark.parametrize("damage", ["adapter/adapter_model.safetensors", "state.pt", "position.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, four_steps: Path, damage: str) -> None:
    run = Run.open(shutil.copytree(four_steps, tmp_path / four_steps.name))
    before = what_happened(run)
    for text in ("", "{}", "junk"):
        (run.path / "checkpoints" / "step_4" / damage).write_text(text)
        start(run.config, Display(Console(quiet=True), quiet=True), resume=run.path)
        assert first_difference(Run.open(run.path), before) is None


def test_what_is_refused_before_the_start_leaves_no_run_behind(tmp_path: Path) -> None:
    for changes, says in [
        ({"orchestrator.env.0.id": "arit"}, "did you mean"),
        ({"orchestrator.eval.test_split": "nowhere", "orchestrator.env.0.args.split_by": "pairs"}, "no such split"),
        ({"output_dir": "/proc/nowhere"}, "cannot be made"),
    ]:
        with pytest.raises(AirError, match=says):
            run_here(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_a_prompt_longer_than_the_context_is_refused_with_the_length_it_needs(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"has \d+ tokens.*more than the context of 20") as error:
        run_here(tmp_path, **{"seq_len": "20", "warmstart": "none", "orchestrator.sampling.max_tokens": "9"})
    assert "to at least" in error.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("size", ["40k", "200k", "600k"])
def test_G4_a_disk_that_fills_up_at_a_checkpoint_is_a_sentence_too(tmp_path: Path, train: str, size: str) -> None:
    """safetensors and torch.save report a full disk in ways of their own."""
    from airloop.learn.checkpoints import checkpoints, save_checkpoint
    from airloop.learn.learner import Learner, LearnerSettings
    from airloop.learn.lora import attach_lora
    from airloop.models.head import logits_head
    from airloop.models.tiny import tiny_model
    from airloop.policy import Policy

    model = tiny_model("llama").model
    peft = attach_lora(model, 64, 64, ["q_proj", "v_proj", "up_proj"]) if train == "lora" else None
    learner = Learner(Policy(model, logits_head(model), peft), LearnerSettings())
    for parameter in learner.parameters:
        parameter.grad = parameter.detach().clone() + 1
    learner.optimiser.step(learner.rate())  # the optimiser's state is most of a checkpoint
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        with pytest.raises(AirError, match="disk is full"):
            for step in range(1, 50):
                save_checkpoint(small, learner, step)
        assert all((path / "position.json").is_file() for _, path in checkpoints(small))
        assert not list(small.glob(".*.tmp"))
    finally:
        subprocess.run(["umount", "-l", small], check=True)
