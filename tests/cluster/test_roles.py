"""[cluster] roles: samplers on nodes of their own. Nodes are scripted, agents and ranks real; servers are stand-ins of
vLLM, in processes of their own, that the agents start, watch and start again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rank_runs import FLAGS, started_from, words
from support.scripted_nodes import ScriptedNodes
from support.vllm_standin import interpreter
from support.warm_ranks import WarmServer

from airloop.cluster.launcher import ClusterLauncher
from airloop.config import load_config
from airloop.launch import local
from airloop.launch.monitor import run_ranks
from airloop.models.tiny import save_tiny
from airloop.runs.run import Run
from airloop.watch.display.display import Display

pytestmark = pytest.mark.slow
SERVED = {
    **FLAGS,
    "deterministic": "false",
    "orchestrator.max_concurrent": "8",
    "model.device": "cpu",
    "cluster.nodes": "3",
    "cluster.roles.learner": "1",
    "cluster.roles.sampler": "2",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return started_from(tmp_path_factory.mktemp("start"))


class World:
    """A run on scripted nodes, trained in a thread of this process."""

    def __init__(self, folder: Path, start: dict[str, str], **changes: str) -> None:
        self.nodes = ScriptedNodes(int(changes.get("cluster.nodes", "3")))
        model = save_tiny(folder / "tiny")  # as files: agents of one process would make it at the same time
        named = {"inference.vllm.python": str(interpreter(folder)), "output_dir": str(folder / "out")}
        named["model.name"] = str(model)
        config = load_config(words({**SERVED, **start, **named, **changes}))
        self.run = Run.create(config, config.task)
        self.run.note(proofs="skipped")
        self.said: list[str] = []
        self.error: BaseException | None = None

    def train(self, resuming: bool = False) -> None:
        run_ranks(self.run, Display(quiet=True), resuming, ClusterLauncher(self.nodes, self.said.append))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", WarmServer)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


def test_a_run_is_sampled_by_servers_that_nodes_keep(tmp_path: Path, start: dict[str, str]) -> None:
    world = World(tmp_path, start)
    world.train()
    lines = world.run.metrics("train")
    assert [(m["rollout"]["episodes"], m["rollout"]["infra_errors"]) for m in lines] == [(20, 0)] * 3
    assert max(m["learner"]["logprob_gap_mean"] for m in lines) < 1e-4
