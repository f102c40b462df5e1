"""Learning over two machines: one node trains while vLLM on the other samples, a step ahead of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.interop_world import ROOT, interpreter
from support.rank_runs import the_run, words
from support.raylets import Raylets

from airloop.config import load_config
from airloop.models.tiny import save_tiny
from airloop.stats.intervals import difference
from airloop.warmstart import warmstart
from airloop.watch.display.display import Display

pytestmark = [pytest.mark.interop, pytest.mark.soak]
WIDE = 128  # heads of 16 numbers, as the tiny model has otherwise, are none of vLLM's
TIMEOUT_S = 3600
SETTINGS = {
    "model.device": "cpu",
    "seq_len": "96",
    "max_steps": "40",
    "ckpt.interval": "100",
    "cluster.nodes": "2",
    "cluster.roles.learner": "1",
    "cluster.roles.sampler": "1",
    "trainer.optim.lr": "2.5e-3",  # half of what learns in turns, as docs/scaling.md has it
    "trainer.loss.importance_mode": "mask",
    "trainer.model.lora.rank": "32",
    "trainer.model.lora.alpha": "64",
    "orchestrator.max_staleness": "1",
    "orchestrator.batch_size": "128",
    "orchestrator.rollouts_per_example": "8",
    "orchestrator.max_concurrent": "128",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "25",
    "orchestrator.eval.rollouts_per_example": "4",
    "orchestrator.env.0.id": "arith",
    "orchestrator.env.0.args.max_number": "4",
    "orchestrator.env.0.args.split_by": "none",
    "inference.max_batch": "128",
}


@pytest.fixture
def raylets() -> Iterator[Raylets]:
    found = Raylets(interpreter("ray"))
    yield found
    found.close()


def test_arith_is_learned_by_one_node_from_what_another_samples_a_step_ahead(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 0, from the supervised start with which a server on this machine learns too (test_vllm)."""
    monkeypatch.chdir(tmp_path)  # Ray has what it starts look for packages where the command is called
    raylets.add()
    raylets.add()
    tiny = save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)
    first = load_config(["arith", "--model.name", str(tiny), "--output_dir", str(tmp_path / "start")])
    started, _ = asyncio.run(warmstart(first, Display(quiet=True)))
    named = {"model.name": str(started / "model"), "output_dir": str(tmp_path / "out")}
    argv = ["train", "--skip-proofs", *words({**SETTINGS, **named, "inference.vllm.python": interpreter("vllm")})]
    env = {**os.environ, "RAY_ADDRESS": raylets.address, "PYTHONPATH": str(ROOT / "tests")}
    began = time.monotonic()
    done = warm_process.run(argv, timeout=TIMEOUT_S, env=env, server=warm_process.server_of(interpreter("ray")))
    assert done.returncode == 0, f"after {time.monotonic() - began:.0f} s: {done.stderr}"
    run = the_run(tmp_path / "out")
    lines = run.metrics("train")
    before, after = ([t.reward for t in run.evaluation(name)] for name in ("before", "after"))
    assert difference(after, before, share=True).low > 0, [line["reward"] for line in lines]
    assert {int(age) for line in lines for age in line["ages"]} == {0, 1}, "some of it was sampled a step ahead"
    gaps = [line["ages"]["0"]["gap"] for line in lines if "0" in line["ages"]]
    assert gaps and max(gaps) < 1e-4, "what was trained is what was sampled"
