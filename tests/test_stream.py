"""Sampling and training side by side: the same run every time, killed and resumed, and what is refused."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import warm_process
from support.killed_runs import first_difference, flags, run_here, saved_episodes, what_happened
from support.warm_process import Process

from airloop import stream
from airloop.config import load_config
from airloop.config.mistakes import Refused
from airloop.files import read_lines
from airloop.launch.monitor import config_for_rank
from airloop.runs.run import Run
from airloop.training import never_run

BESIDE = {"orchestrator.max_staleness": "2", "trainer.loss.importance_mode": "mask"}
FILTERED = {"orchestrator.buffer.online_difficulty_filtering": "true", "orchestrator.oversampling_factor": "2"}
GROUPS = 4


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return what_happened(run_here(tmp_path_factory.mktemp("beside"), **BESIDE))


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return what_happened(run_here(tmp_path_factory.mktemp("filtered"), **BESIDE, **FILTERED))


def check_books(run: Run, staleness: int = 2) -> None:
    """Every group that was admitted was trained once, in its turn, within the bound, and its episodes are where the
    step's are."""
    lines = read_lines(run.path / "stream.jsonl")
    trained = [line for line in lines if "trained" in line]
    assert [line["step"] for line in trained] == list(range(run.config.max_steps))
    taken = [sorted(line["trained"] + line["dropped"]) for line in trained]
    numbers = [number for step in taken for number in step]
    assert numbers == list(range(len(numbers)))
    times = Counter[str]()
    for step, (line, groups) in enumerate(zip(trained, taken, strict=True)):
        record = read_lines(run.path / "tokens" / f"step_{step:04d}.jsonl")
        scored = {entry["id"] for entry in record if entry["fate"] != "infra_error"}
        found = {t.id: place[0] for place, t in run.finished(step).items()}
        assert scored == found.keys() and {*found.values()} == {*groups}
        learned = {found[entry["id"]] for entry in record if entry["fate"] in ("trained", "zero advantage")}
        assert learned == {*line["trained"]}
        times.update(scored)
        for t in run.finished(step).values():
            versions = [turn.sampled.version for turn in t.turns if turn.sampled is not None]
            assert step - staleness <= t.version <= min(versions) <= max(versions) <= step
    assert set(times.values()) == {1}


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_beside_as_well(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    run = run_here(tmp_path, **BESIDE)
    assert first_difference(run, uninterrupted) is None
    check_books(run)
    ages = {age for line in run.metrics("train") for age in line["ages"]}
    assert {"0", "2"} <= ages <= {"0", "1", "2"}
    found = first_difference(run_here(tmp_path / "other", seed="1", **BESIDE), uninterrupted)
    assert found and found.startswith("episodes[0]: ")


@pytest.mark.long
def test_groups_without_signal_give_their_place_back(tmp_path: Path, filtered: dict[str, Any]) -> None:
    run = run_here(tmp_path, **BESIDE, **FILTERED)
    assert first_difference(run, filtered) is None
    check_books(run)
    lines = [line for line in read_lines(run.path / "stream.jsonl") if "trained" in line]
    assert any(line["dropped"] for line in lines)
    assert all(len(line["trained"]) == GROUPS or len(line["trained"] + line["dropped"]) == 8 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize(("when", "more"), [(0, {}), pytest.param(1, {}, marks=pytest.mark.soak), (2, FILTERED)])
def test_H13_killed_at_any_moment_it_resumes_to_the_same_end(
    tmp_path: Path, uninterrupted: dict[str, Any], filtered: dict[str, Any], when: int, more: dict[str, str]
) -> None:
    rng = random.Random(when)
    path = kill_and_resume(tmp_path, rng, {**BESIDE, **more})
    assert first_difference(Run.open(path), filtered if more else uninterrupted) is None
    check_books(Run.open(path))


@pytest.mark.long
@pytest.mark.parametrize(("when", "more"), [(0, {}), (1, FILTERED), (2, {"ckpt.interval": "1"})])
def test_H13_killed_by_the_time_of_day_nothing_is_skipped_and_nothing_twice(
    tmp_path: Path, when: int, more: dict[str, str]
) -> None:
    """Real concurrency: the update in its thread, replies that are finished before it, groups in flight."""
    path = kill_and_resume(tmp_path, random.Random(when), {**BESIDE, "deterministic": "false", **more})
    run = Run.open(path)
    check_books(run)
    fresh = [line["ages"]["0"]["gap"] for line in run.metrics("train") if "0" in line["ages"]]
    assert fresh and max(fresh) < 1e-5  # what the policy of the moment sampled is what it is trained from


def kill_and_resume(directory: Path, rng: random.Random, changes: dict[str, str], kills: int = 3) -> Path:
    arguments = flags(directory, **changes)
    for target in sorted(rng.sample(range(1, 120), kills)):
        process = Process(["train", "--skip-proofs", *arguments])
        deadline = time.monotonic() + 300
        while saved_episodes(directory) < target and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["--resume", str(next(directory.glob("exp*")))]
    done = warm_process.run(["train", "--skip-proofs", *arguments])
    assert done.returncode == 0, done.stderr
    return next(directory.glob("exp*"))


def test_with_max_staleness_0_it_is_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "train", None)
    run = run_here(tmp_path, max_steps="1", warmstart="none")
    assert len(run.metrics("train")) == 1 and not (run.path / "stream.jsonl").exists()
    assert "ages" not in run.metrics("train")[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--trainer.loss.anchor", "sampler", "--trainer.processes", "2"],
            "2 trainer processes needs servers of vLLM",
        ),
        (["--trainer.loss.anchor", "sampler", "--orchestrator.curriculum.low", "0.1"], "curriculum.* is not in this"),
        (["--trainer.loss.anchor", "sampler", "--trainer.loss.type", "gspo"], 'does not go with type = "gspo"'),
        (
            ["--trainer.loss.anchor", "sampler", "--trainer.loss.importance_mode", "mask"],
            "whose clip is the correction",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(words: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        load_config(["--orchestrator.max_staleness", "1", *words])


@pytest.mark.parametrize("key", ["geo_mask_high", "sequence_mask_high"])
def test_H14_a_mask_of_sequences_is_a_trust_region(key: str) -> None:
    config = load_config(["--orchestrator.max_staleness", "1", f"--trainer.loss.{key}", "3"])
    assert getattr(config.trainer.loss, key) == 3.0 and config.trainer.loss.importance_mode == "truncate"


def test_what_was_never_run_on_such_a_device_is_said() -> None:
    beside = load_config(["arith", "--orchestrator.max_staleness", "1", "--trainer.loss.importance_mode", "mask"])
    assert "max_staleness" in never_run(beside, "cuda") and not never_run(beside, "cpu")
    assert not never_run(load_config(["arith"]), "cuda")
    assert "trainer.model.shard" in never_run(load_config(["arith"]), "cuda", base_shards=True)
    one = config_for_rank(load_config(["arith", "--trainer_gpu_ids", "[0, 1]"]), "cuda")
    assert "2 GPUs that train together" in never_run(one, "cuda", ranks=2) and not never_run(one, "cpu", ranks=2)
