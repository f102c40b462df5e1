"""Runs of several processes, and what makes two runs the same."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from airloop.config import load_config
from airloop.runs.run import Run
from airloop.warmstart import warmstart
from airloop.watch.display.display import Display

FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "orchestrator.env.0.args.max_number": "3",
    "orchestrator.env.0.args.split_by": "none",
    "orchestrator.batch_size": "20",
    "orchestrator.rollouts_per_example": "4",
    "seq_len": "48",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "5",
    "orchestrator.eval.interval": "2",
    "trainer.optim.lr": "1e-3",
    "ckpt.interval": "2",
    "max_steps": "3",
    "deterministic": "true",
}


def words(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


def started_from(directory: Path, train: str = "lora", **more: str) -> dict[str, str]:
    """What a run starts from: something that sometimes scores. `more`: what else is other than in FLAGS."""
    fit = {"warmstart.steps": "30", "warmstart.episodes": "64", "warmstart.lr": "1e-2"}
    settings = {**FLAGS, **fit, "trainer.model.train": train, "output_dir": str(directory), **more}
    made, _ = asyncio.run(warmstart(load_config(words(settings)), Display(quiet=True)))
    return {"model.adapter": str(made / "adapter")} if train == "lora" else {"model.name": str(made / "model")}


def the_run(directory: Path) -> Run:
    (path,) = directory.glob("exp*")
    return Run.open(path)


def what_happened(run: Run) -> dict[str, Any]:
    episodes = [
        (t.task.id, t.seed, t.version, t.reward, [b.tokens for b in t.branches])
        for step in range(run.config.max_steps)
        for _, t in sorted(run.finished(step).items())
    ]
    evals = [(m["step"], m["name"], m["episodes"], m["reward"]["mean"]) for m in run.metrics("eval")]
    trained = [json.loads(line)["id"].rpartition("_")[2] for line in (run.path / "tokens" / "step_0002.jsonl").open()]
    return {"episodes": episodes, "evals": evals, "trained": trained}


def numbers(run: Run) -> list[Any]:
    kept = ("loss", "grad_norm", "update_ratio", "tokens_trained", "entropy", "logprob_gap_max")
    return [[m["reward"], *(m["learner"].get(k, 0.0) for k in kept)] for m in run.metrics("train")]


def weights(run: Run) -> dict[str, Any]:
    last = run.path / "checkpoints" / f"step_{run.config.max_steps}"
    return load_file(next(last.glob("*/*.safetensors")))


def same(one: Run, two: Run) -> None:
    """Engines with other episodes beside them differ in the last bits of log-probs, and Adam turns the least gradients
    into steps of lr = 1e-3. (On the same log-probs, tests/learn/test_parallel.py compares closely.)"""
    assert what_happened(one) == what_happened(two)
    for a, b in zip(numbers(one), numbers(two), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert max((first[k] - second[k]).abs().max().item() for k in first) < 2e-4


def ranks_of(directory: Path) -> dict[int, int]:
    """Process ids by rank, as the run's log has them."""
    (log,) = directory.glob("exp*/log.txt")
    return {int(rank): int(pid) for rank, pid in re.findall(r" rank (\d): process (\d+)\n", log.read_text())}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
