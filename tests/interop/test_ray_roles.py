"""[cluster] roles above Ray itself: raylets of this machine as nodes, one of which only samples, with vLLM's build for
CPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.interop_world import ROOT, interpreter
from support.rank_runs import FLAGS, started_from, the_run, words
from support.raylets import Raylets

from airloop.learn.checkpoints import checkpoints
from airloop.models.tiny import save_tiny

pytestmark = pytest.mark.interop
START_S = 900.0  # 115 s on two quiet cores, and over 300 beside a whole suite
WIDE = 128  # heads of 16 numbers, as the tiny model has otherwise, are none of vLLM's
ROLES = {
    **FLAGS,
    "deterministic": "false",
    "model.device": "cpu",
    "cluster.nodes": "2",
    "cluster.roles.learner": "1",
    "cluster.roles.sampler": "1",
    "max_steps": "4000",
    "ckpt.interval": "1",
}


@pytest.fixture
def raylets() -> Iterator[Raylets]:
    found = Raylets(interpreter("ray"))
    yield found
    found.close()


def served_from(model: Path) -> list[int]:
    """Processes of vLLM that have this model."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"vllm.entrypoints.openai.api_server" in words and str(model).encode() in words:
                found.append(int(path.parent.name))
    return found


def test_a_node_with_vllm_samples_for_another_that_trains_and_its_loss_ends_the_run_with_a_sentence(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for both: vLLM takes more than a minute to start."""
    monkeypatch.chdir(tmp_path)  # Ray has what it starts look for packages where the command is called
    python = interpreter("vllm")
    raylets.add()
    second = raylets.add()
    model = save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)
    start = started_from(tmp_path / "start", **{"model.name": str(model)})
    named = {**start, "inference.vllm.python": python, "model.name": str(model), "output_dir": str(tmp_path / "out")}
    env = {**os.environ, "RAY_ADDRESS": raylets.address, "PYTHONPATH": str(ROOT / "tests")}
    argv = ["train", "--skip-proofs", *words({**ROLES, **named})]
    server = warm_process.server_of(interpreter("ray"))
    training = warm_process.Process(argv, env=env, stderr=True, server=server)
    try:
        until = time.monotonic() + START_S
        while not list(tmp_path.glob("out/exp*/checkpoints/step_3")):
            assert training.poll() is None, training.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.2)
        assert served_from(model)
        second.signal(signal.SIGKILL)
        began = time.monotonic()
        _, said = training.communicate(timeout=120)
        took = time.monotonic() - began
    finally:
        training.kill()
    until = time.monotonic() + 60
    while served_from(model):
        assert time.monotonic() < until, "its server has outlived it, and holds what it holds"
        time.sleep(0.2)
    assert training.returncode == 1 and took < 90
    run = the_run(tmp_path / "out")
    assert "No server of vLLM is left" in said and "its node was lost" in said and "no server is left" in said
    assert "air train --resume" in said and said.count("never run") == 1 and "Traceback" not in said
    assert run.status()["status"] == "failed" and checkpoints(run.path / "checkpoints")
    lines = run.metrics("train")
    assert all((m["rollout"]["episodes"], m["rollout"]["infra_errors"]) == (20, 0) for m in lines)
    assert max(m["learner"]["logprob_gap_mean"] for m in lines) < 1e-4
    assert "vLLM" in (run.path / "servers" / "0.log").read_text(), "what it printed has come from its node"
