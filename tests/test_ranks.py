"""Runs of two and three ranks on the CPU, started as a person starts them: the same run as one process makes, killed,
stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.rank_runs import FLAGS, alive, numbers, ranks_of, same, started_from, the_run, words

import airloop
from airloop.environments import load_environments
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.run import Run

COMMAND = ["train", "--skip-proofs"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    return {train: started_from(tmp_path_factory.mktemp(train), train) for train in ("lora", "full")}


def arguments(start: dict[str, dict[str, str]], directory: Path, train: str = "lora", **changes: str) -> list[str]:
    settings = {**FLAGS, "trainer.model.train": train, "output_dir": str(directory), **start[train], **changes}
    return words(settings)


def finish(argv: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = warm_process.run([*COMMAND, *argv])
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def alone(start: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    found = {}
    for train in ("lora", "full"):
        directory = tmp_path_factory.mktemp("alone")
        finish(arguments(start, directory, train))
        found[train] = the_run(directory)
        assert any(loss for _, loss, *_ in numbers(found[train]))  # something was learned
    return found


@pytest.mark.long
@pytest.mark.parametrize(("train", "more"), [("lora", []), ("lora", ["--trainer.model.shard", "true"]), ("full", [])])
def test_two_ranks_make_the_run_that_one_process_makes(
    tmp_path: Path, start: dict[str, dict[str, str]], alone: dict[str, Run], train: str, more: list[str]
) -> None:
    done = finish([*arguments(start, tmp_path, train), "--trainer.processes", "2", *more])
    assert ("the frozen base is in shards while training" in done.stderr) == bool(more)
    run = the_run(tmp_path)
    same(alone[train], run)
    assert "2 processes" in done.stderr and "step   correct  reward" in done.stderr and "plot:" in done.stdout
    assert run.status()["status"] == "completed" and (run.path / "learning.png").is_file()
    assert len(list(run.path.glob("trajectories/*/*.json"))) == 60
    assert [m["rollout"]["episodes"] for m in run.metrics("train")] == [20, 20, 20]


@pytest.mark.long
def test_filtered_groups_are_replaced_by_the_same_tasks_whatever_the_number_of_ranks(
    tmp_path: Path, start: dict[str, dict[str, str]]
) -> None:
    filtering = {"orchestrator.buffer.online_difficulty_filtering": "true", "orchestrator.oversampling_factor": "2.0"}
    places = []
    for processes in ("1", "3"):
        finish(
            arguments(start, tmp_path / processes, **filtering, **{"trainer.processes": processes, "max_steps": "1"})
        )
        run = the_run(tmp_path / processes)
        lines = [json.loads(line) for line in (run.path / "tokens" / "step_0000.jsonl").open()]
        places.append(sorted((line["id"].rpartition("_")[2], line["fate"], line["reward"]) for line in lines))
    assert places[0] == places[1] and any(fate == "no_signal" for _, fate, _ in places[0])


class Started:
    """A run of many steps under way."""

    def __init__(self, directory: Path, argv: list[str], episodes: int) -> None:
        self.process = warm_process.Process([*COMMAND, *argv], stderr=True)
        deadline = time.monotonic() + 300
        while len(list(directory.glob("exp*/trajectories/*/*.json"))) < episodes:
            assert self.process.poll() is None, self.end(10)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.ranks = ranks_of(directory)
        assert sorted(self.ranks) == [0, 1]

    def end(self, wait_s: float) -> str:
        return self.process.communicate(timeout=wait_s)[1]


@pytest.fixture
def started(tmp_path: Path, start: dict[str, dict[str, str]], request: pytest.FixtureRequest) -> Iterator[Started]:
    settings = {"trainer.processes": "2", "max_steps": "400", "ckpt.interval": "3", **getattr(request, "param", {})}
    run = Started(tmp_path, arguments(start, tmp_path, **settings), 90)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def shorten(run: Run, steps: int, processes: int | None = None) -> None:
    """As a person would: by the run's own config."""
    text = (run.path / "config.toml").read_text().replace("max_steps = 400", f"max_steps = {steps}")
    if processes:
        text = text.replace("processes = 2", f"processes = {processes}")
    (run.path / "config.toml").write_text(text)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "started"), [(0, {}), (1, {}), (1, {"trainer.model.shard": "true"})], indirect=["started"]
)
def test_a_killed_rank_ends_the_run_with_a_sentence_and_it_resumes(
    tmp_path: Path, started: Started, victim: int
) -> None:
    os.kill(started.ranks[victim], signal.SIGKILL)
    began = time.monotonic()
    errors = started.end(120)
    assert time.monotonic() - began < 60
    run = the_run(tmp_path)
    assert started.process.returncode == 1 and "Traceback" not in errors
    assert f"Rank {victim} of 2 was killed by SIGKILL" in errors and f"air train --resume {run.path}" in errors
    assert run.status()["status"] == "failed" and "SIGKILL" in run.status()["why"]
    assert not any(alive(pid) for pid in started.ranks.values())
    steps = len(run.metrics("train"))
    assert steps >= 3
    shorten(run, steps + 1, processes=3 if victim else 1)  # and on another number of ranks
    again = finish(["--resume", str(run.path)])
    assert "resuming" in again.stderr and "after step 0" not in again.stderr
    run = the_run(tmp_path)
    assert run.status()["status"] == "completed"
    assert [m["step"] for m in run.metrics("train")] == list(range(steps + 1))
    planned = [task.id for task in TaskSchedule(load_environments(run.config), "train", 0).batch(steps, 5)]
    sampled = run.finished(steps)
    assert [sampled[group, 0].task.id for group in range(5)] == planned  # the batch that was next


@pytest.mark.slow
def test_ctrl_c_stops_all_ranks_with_everything_saved(tmp_path: Path, started: Started) -> None:
    started.process.send_signal(signal.SIGINT)
    errors = started.end(120)
    run = the_run(tmp_path)
    assert started.process.returncode == 130 and "Traceback" not in errors
    assert f"air train --resume {run.path}" in errors and run.status()["status"] == "stopped"
    assert all(json.loads(p.read_text()) for p in run.path.rglob("trajectories/*/*.json"))
    assert not any(alive(pid) for pid in started.ranks.values())


@pytest.mark.slow
def test_ranks_do_not_outlive_the_process_that_started_them(started: Started) -> None:
    started.process.kill()
    started.process.wait()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in started.ranks.values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


ANEW = """
from airloop.launch import local
from airloop.cli import main

def refuse(modules):
    raise local.CannotFork("it has 3 threads")

local.ForkServer = refuse
main()
"""


@pytest.mark.long
def test_ranks_are_started_anew_where_none_can_be_forked(tmp_path: Path, start: dict[str, dict[str, str]]) -> None:
    """As those on GPUs are."""
    argv = [*COMMAND, *arguments(start, tmp_path, **{"trainer.processes": "2", "max_steps": "1"})]
    done = warm_process.run(argv, code=ANEW)
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stderr and the_run(tmp_path).status()["status"] == "completed"


@pytest.mark.slow
def test_what_a_rank_refuses_is_told_as_if_there_were_one(tmp_path: Path, start: dict[str, dict[str, str]]) -> None:
    """What only a rank can see, when its engine is made."""
    argv = arguments(start, tmp_path, **{"trainer.processes": "2", "inference.kv_tokens": "16"})
    errors = finish(argv, code=1).stderr
    assert "key/value memory holds 16 tokens, less than one context" in errors
    assert "fix:" in errors and "Traceback" not in errors
    assert the_run(tmp_path).status()["status"] == "failed"


def test_gpus_that_are_not_there_are_refused(tmp_path: Path) -> None:
    import torch

    beyond = torch.cuda.device_count() + 7
    settings = {**FLAGS, "output_dir": str(tmp_path), "trainer_gpu_ids": f"[0, {beyond}]"}
    errors = finish(words(settings), code=1).stderr
    assert f"GPUs [0, {beyond}] are asked for, and torch sees" in errors and "fix:" in errors


# Pays far too much in the first attempt at the second step: a number for Python, none for the gradient.
POISONED = """
from airloop.seeds import episode_seed
from airloop.types import Score

BAD = {episode_seed(0, 1, "my_env", f"{a},{b}", s) for a in range(10) for b in range(10) for s in range(4)}


class PoisonedSession(MySession):
    def __init__(self, task, seed):
        super().__init__(task)
        self.seed = seed

    async def finish(self):
        won = float(self.seed % 2)
        return Score({"correct": won * (1e39 if self.seed in BAD else 1.0)}, {"correct": won})


MyEnv.open = lambda self, task, seed: PoisonedSession(task, seed)
"""


@pytest.mark.long
@pytest.mark.parametrize("train", ["lora", "full"])
def test_G12_two_ranks_refuse_a_step_together_and_sample_it_anew(tmp_path: Path, train: str) -> None:
    """An adapter that both have whole, and shards: whichever way the gradient is found out, both go on alike."""
    starter = Path(airloop.__file__).parent / "starter" / "my_env.py"
    (tmp_path / "my_env.py").write_text(starter.read_text() + POISONED)
    settings = {key: value for key, value in FLAGS.items() if not key.startswith("orchestrator.env")}
    changes = {
        "orchestrator.env.0.id": f"{tmp_path / 'my_env.py'}:MyEnv",
        "trainer.loss.scale_rewards": "false",
        "trainer.model.train": train,
        "orchestrator.batch_size": "16",
        "orchestrator.eval.interval": "0",
    }
    found = {}
    for ranks in ("1", "2"):
        directory = tmp_path / ranks
        finish(words({**settings, **changes, "output_dir": str(directory), "trainer.processes": ranks}))
        run = the_run(directory)
        assert [m["step"] for m in run.metrics("train")] == [0, 1, 2] and run.refusals(1) == 1
        assert len(list(run.path.glob("trajectories/refused_0001_1/*.json"))) == 16
        assert [line["id"] for line in run.alarms() if line["event"] == "raised"].count("G12") == 1
        found[ranks] = [
            (step, place, t.task.id, t.seed, t.version) for step in range(3) for place, t in run.finished(step).items()
        ]
    assert sorted(found["1"]) == sorted(found["2"])
