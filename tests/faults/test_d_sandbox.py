"""Section D of the failures people met: the agent's sandbox. One test per id."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from airloop.config import load_config
from airloop.envs.arith import ArithArgs, ArithEnv, ArithSession
from airloop.envs.base import Opening
from airloop.errors import InfraError
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.run import Run, read_trajectories
from airloop.seeds import episode_seed
from airloop.training import start
from airloop.types import Task
from airloop.watch.display.display import Display

FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "orchestrator.env.0.args.max_number": "3",
    "orchestrator.env.0.args.split_by": "none",
    "orchestrator.batch_size": "10",
    "orchestrator.rollouts_per_example": "5",
    "orchestrator.retries": "1",
    "seq_len": "48",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "2",
    "max_steps": "2",
}


class SpoiltSession(ArithSession):
    """A sandbox that is gone whenever it is opened."""

    async def begin(self) -> Opening:
        raise InfraError("the sandbox is gone")


@pytest.mark.slow
def test_D7_an_episode_whose_sandbox_never_works_is_dropped_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(
        [w for key, value in {**FLAGS, "output_dir": str(tmp_path)}.items() for w in (f"--{key}", value)]
    )
    env = ArithEnv(ArithArgs(max_number=3, split_by="none"))
    broken = TaskSchedule({"arith": env}, "train", config.seed).batch(0, 2)[0]
    spoilt = episode_seed(config.seed, 0, "arith", broken.id, 3)
    healthy = ArithEnv.open

    def sometimes(self: ArithEnv, task: Task, seed: int) -> ArithSession:
        return SpoiltSession(task) if (task.id, seed) == (broken.id, spoilt) else healthy(self, task, seed)

    monkeypatch.setattr(ArithEnv, "open", sometimes)
    out = io.StringIO()
    run = start(config, Display(Console(file=out, width=200)), skip_proofs=True).run
    first, second = run.metrics("train")

    assert len(first["rewards"]) == 9 and first["reward"] == pytest.approx(sum(first["rewards"]) / 9)
    counted = {name: first["rollout"][name] for name in ("episodes", "infra_errors", "retried", "lost", "groups")}
    assert counted == {"episodes": 10, "infra_errors": 2, "retried": 1, "lost": 1, "groups": 2}
    assert first["rollout"]["dropped_infra_error"] == 0  # the group goes on with its other four
    assert second["rollout"]["lost"] == second["rollout"]["retried"] == 0 and len(second["rewards"]) == 10

    lines = [json.loads(line) for line in (run.path / "tokens" / "step_0000.jsonl").read_text().splitlines()]
    saved = read_trajectories(run.path / "trajectories" / "step_0000")
    lost = {t.id for t in saved if t.ending == "infra_error"}
    assert len(saved) == 11 and len(lost) == 2  # both attempts are on disk, none of them was trained on
    trained = {line["id"] for line in lines if line["id"] not in lost}
    assert trained == {t.id for t in saved} - lost
    # The ledger has a line for them too: what they cost, and no advantage.
    assert all("advantage" not in line for line in lines if line["id"] in lost)
    in_its_group = [
        line for line in lines if line["id"] in trained and line["id"].startswith(broken.id.replace("+", "-") + "_")
    ]
    assert len(in_its_group) == 4 and sum(line["advantage"] for line in in_its_group) == pytest.approx(0, abs=1e-6)
    assert all(t.error.startswith("the sandbox is gone") for t in saved if t.id in lost)

    said = out.getvalue()
    assert said.count("infrastructure errors: attempts repeated: 1; episodes dropped: 1 of 10") == 1
    # The step was recorded without it: repeated on resume, it is repeated without it.
    again = Run.open(run.path).finished(0)
    assert sum(t.ending == "infra_error" for t in again.values()) == 1 and len(again) == 10
