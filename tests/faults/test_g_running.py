"""G2, G5, G6 and G8: killed at the worst moment, however an episode ends, under whichever policy, at any second."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support import warm_process
from support.talk_env import Talk, TalkSession, talking
from support.watched_runs import run_watched

from airloop.assemble import Components
from airloop.config import Config, load_config
from airloop.rollout.schedule import Names, place_in_step
from airloop.runs.run import Run, read_trajectories
from airloop.runs.trajectory_file import from_json, to_json
from airloop.training import start
from airloop.types import Action, Observation, Trajectory
from airloop.watch.display.display import Display

FRESH = {  # random weights, four groups of four, nothing learned
    "warmstart.steps": "0",
    "orchestrator.batch_size": "16",
    "orchestrator.rollouts_per_example": "4",
    "seq_len": "160",
    "orchestrator.sampling.max_tokens": "4",
    "orchestrator.retries": "0",
    "orchestrator.eval.num_examples": "1",
    "max_steps": "1",
}


def coin(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    return {"won": float(seed % 2)}, {}


# --- G2 ---------------------------------------------------------------------------------------------------------------

# A run in a process of its own, that is killed while its second checkpoint is being written.
KILLED = """
import os, signal, sys
from airloop.config import load_config
from airloop.learn import checkpoints
from airloop.training import start
from airloop.watch.display.display import Display

write = checkpoints._write_weights

def half(learner, weights, directory):
    write(learner, weights, directory)
    if directory.name.startswith(".step_2"):
        os.kill(os.getpid(), signal.SIGKILL)

checkpoints._write_weights = half
start(load_config(sys.argv[1:]), Display(quiet=True), skip_proofs=True)
"""


def small_run(directory: Path) -> Config:
    settings = {
        "model.name": "tiny:llama",
        "orchestrator.env.0.id": "arith",
        "orchestrator.env.0.args.max_number": "3",
        "orchestrator.env.0.args.split_by": "none",
        "orchestrator.batch_size": "8",
        "orchestrator.rollouts_per_example": "4",
        "seq_len": "48",
        "orchestrator.sampling.max_tokens": "3",
        "orchestrator.eval.num_examples": "2",
        "trainer.loss.kl_beta": "0.01",  # so that every step trains, also where all scored alike
        "trainer.optim.lr": "1e-2",
        "ckpt.interval": "1",
        "max_steps": "3",
        "deterministic": "true",
        "output_dir": str(directory),
    }
    return load_config([word for key, value in settings.items() for word in (f"--{key}", value)])


def what_it_did(run: Run) -> dict[str, Any]:
    batches = {
        step: [(place, t.task.id, t.seed, t.version, t.reward, t.branches) for place, t in run.finished(step).items()]
        for step in range(3)
    }
    steps = [(m["step"], m["reward"], m["learner"]["loss"], m["learner"]["grad_norm"]) for m in run.metrics("train")]
    weights = load_file(run.path / "checkpoints" / "step_3" / "adapter" / "adapter_model.safetensors")
    return {
        "batches": {step: sorted(found) for step, found in batches.items()},
        "steps": steps,
        "weights": {name: value.numpy().tobytes() for name, value in weights.items()},
    }


@pytest.mark.slow
def test_G2_killed_while_a_checkpoint_is_written_a_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    """Adapter, optimiser, random states, data position and version come from the checkpoint before; tests/test_run.py
    kills at random moments."""
    whole = start(small_run(tmp_path / "whole"), Display(quiet=True), skip_proofs=True).run
    config = small_run(tmp_path / "killed")
    words = ["@", whole.path / "config.toml", "--output_dir", config.output_dir]
    killed = warm_process.run(words, code=KILLED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    (path,) = (tmp_path / "killed").glob("exp*")
    assert sorted(os.listdir(path / "checkpoints")) == [".step_2.tmp", "step_1"], "half a checkpoint is none"
    resumed = start(config, Display(quiet=True), resume=path, skip_proofs=True).run
    assert what_it_did(Run.open(resumed.path)) == what_it_did(Run.open(whole.path))
    assert not (path / "checkpoints" / ".step_2.tmp").exists()


# --- G5 ---------------------------------------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[Talk, dict[str, str]]] = {
    "done": (Talk(coin, done=True), {}),
    "max_turns": (Talk(coin, turns=3), {}),
    "context_full": (Talk(coin, turns=20, answer="a long answer to it " * 3), {}),
    "deadline": (Talk(coin, tool_s=30.0), {"orchestrator.episode_timeout_s": "4"}),
    "infra_error": (Talk(coin, fails=lambda seed: seed % 4 == 0), {}),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_G5_however_an_episode_ends_it_is_saved_once(ending: str, tmp_path: Path) -> None:
    talk, changes = ENDINGS[ending]
    run, _, error = run_watched(tmp_path, talking(talk), **{**FRESH, **changes})
    saved = read_trajectories(run.path / "trajectories" / "step_0000")
    places = Counter(t.id.rpartition("_")[2] for t in saved)
    assert error is None and len(saved) == 16 and set(places.values()) == {1}
    endings = Counter(t.ending for t in saved)
    assert endings[ending] > 0 and set(endings) <= {ending, "max_turns"}
    (line,) = run.metrics("train")
    assert line["rollout"][f"ended_{ending}"] == endings[ending] and line["rollout"]["episodes"] == len(saved)
    for t in saved:  # with all that it had done by then, and a score unless the machinery is to blame
        assert t.turns and (t.error if t.ending == "infra_error" else set(t.rewards) == {"won"})


# --- G6 ---------------------------------------------------------------------------------------------------------------


def test_G6_the_policys_version_is_recorded_with_every_turn_when_it_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another policy is published between the turns of an episode, as when sampling and training go side by side: each
    turn has the version that it was sampled with, the episode the one that it began with, whatever is there when it is
    saved."""
    parts_of: list[Components] = []
    act = TalkSession.act

    async def publishes(self: TalkSession, action: Action) -> Observation:
        (parts,) = parts_of
        await parts.engine.publish(parts.engine.version + 1)
        return await act(self, action)

    monkeypatch.setattr(TalkSession, "act", publishes)

    def tamper(parts: Components) -> None:
        parts_of.append(parts)
        talking(Talk(coin, turns=3))(parts)

    changes = {"orchestrator.batch_size": "2", "orchestrator.rollouts_per_example": "2"}
    run, witness, _ = run_watched(tmp_path, tamper, **{**FRESH, **changes, "orchestrator.max_concurrent": "1"})
    saved = sorted(read_trajectories(run.path / "trajectories" / "refused_0000_1"), key=lambda t: t.started)
    before = 3 * len(run.evaluation("before"))  # turns, and so versions
    versions = [[turn.sampled.version for turn in t.turns if turn.sampled] for t in saved]
    assert versions == [[before, before + 1, before + 2], [before + 3, before + 4, before + 5]]
    assert {t.version for t in saved} == {0}, "the version that the step was planned for"
    assert all("_pi0_" in t.id for t in saved)
    (alarm,) = witness.of("engine_serves_another_policy")  # and in a run of this project it is an alarm
    assert f"The step was sampled from version {before} to {before + 5}, not 0." in alarm.seen


def test_G6_in_a_healthy_run_each_step_has_its_version(tmp_path: Path) -> None:
    run, witness, error = run_watched(tmp_path, talking(Talk(coin)), **{**FRESH, "max_steps": "3"})
    assert error is None and witness.of("engine_serves_another_policy") == []
    for step in range(3):
        for t in run.finished(step).values():
            assert {turn.sampled.version for turn in t.turns if turn.sampled} == {t.version} == {step}
            assert f"_pi{step}_" in t.id


# --- G8 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_G8_thousands_of_episodes_of_one_second_have_a_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,200 of 100 tasks, 32 of each, all ended in the same second: as many files, each with its own episode."""
    run, _, _ = run_watched(tmp_path, talking(Talk(coin)), **FRESH)
    (one, *_) = read_trajectories(run.path / "trajectories" / "step_0000")
    now = time.localtime()
    monkeypatch.setattr(time, "strftime", lambda form, at=now, real=time.strftime: real(form, at))
    names, step = Names(), 7
    for index in range(100):
        for sample in range(32):
            id = names.make(f"task/{index % 10}", step, index, sample)  # ten names for the tasks
            run.save_trajectory(renamed(one, id, seed=32 * index + sample), step)
    files = list((run.path / "trajectories" / "step_0007").glob("*.json"))
    assert len(files) == 3200
    found = run.finished(step)
    assert len(found) == 3200 and all(found[place].seed == 32 * place[0] + place[1] for place in found)
    assert names.make("task/0", step, 0, 0) not in {file.stem for file in files}, "a second attempt has its own too"
    assert place_in_step(names.make("task/0", step, 5, 6)) == (5, 6)


def renamed(trajectory: Trajectory, id: str, seed: int) -> Trajectory:
    return from_json({**to_json(trajectory), "id": id, "seed": seed})
