"""[cluster] roles: samplers on nodes of their own. Nodes are scripted, agents and ranks real; servers are stand-ins of
vLLM, in processes of their own, that the agents start, watch and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.guarded_process import pid_of
from support.rank_runs import FLAGS, started_from, words
from support.scripted_nodes import ScriptedNodes
from support.vllm_standin import interpreter
from support.warm_ranks import WarmServer

from airloop.cluster.launcher import ClusterLauncher
from airloop.cluster.supervised_server import SupervisedServer
from airloop.config import load_config
from airloop.engine.vllm.remote_servers import ServerStatusFile
from airloop.engine.vllm.server import VllmServer
from airloop.errors import AirError
from airloop.launch import local
from airloop.launch.monitor import run_ranks
from airloop.learn.checkpoints import checkpoints
from airloop.models.tiny import save_tiny
from airloop.runs.run import Run
from airloop.watch.display.display import Display

pytestmark = pytest.mark.slow
WAIT_S = 600.0  # for what goes on: it ends earlier where the run does
SERVED = {
    **FLAGS,
    "deterministic": "false",
    "orchestrator.max_concurrent": "8",
    "model.device": "cpu",
    "cluster.nodes": "3",
    "cluster.roles.learner": "1",
    "cluster.roles.sampler": "2",
    "ckpt.interval": "1",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return started_from(tmp_path_factory.mktemp("start"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", WarmServer)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


class World:
    """A run on scripted nodes, trained in a thread."""

    def __init__(self, folder: Path, start: dict[str, str], **changes: str) -> None:
        self.count = int(changes.get("cluster.nodes", SERVED["cluster.nodes"]))
        named = {"inference.vllm.python": str(interpreter(folder)), "output_dir": str(folder / "out")}
        # As files: agents of one process would make it at the same time.
        named["model.name"] = str(save_tiny(folder / "tiny"))
        config = load_config(words({**SERVED, **start, **named, **changes}))
        self.run = Run.create(config, config.task)
        self.run.note(proofs="skipped")
        self.nodes = ScriptedNodes(self.count)
        self.said: list[str] = []
        self.error: AirError | None = None
        self._thread = threading.Thread(target=self._train, daemon=True)

    def begin(self, resuming: bool = False) -> None:
        self.error, self.nodes = None, ScriptedNodes(self.count)
        for number, node in enumerate(self.nodes.nodes):  # each listens on an address of its own
            facts = node.agent.facts(self.nodes.head)
            node.says["facts"] = {**facts, "address": f"127.0.0.{number + 1}"}
        self._thread = threading.Thread(target=self._train, args=(resuming,), daemon=True)
        self._thread.start()

    def _train(self, resuming: bool) -> None:
        try:
            run_ranks(self.run, Display(quiet=True), resuming, ClusterLauncher(self.nodes, self.said.append))
        except AirError as error:
            self.error = error

    def end(self) -> AirError | None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.error

    def until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not there():
            assert self._thread.is_alive(), self.error
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def steps(self) -> list[dict[str, Any]]:
        return self.run.metrics("train")

    @property
    def status_file(self) -> ServerStatusFile:
        (found,) = self.run.path.glob(".ranks-*/servers.json")
        return ServerStatusFile(found)

    def lose(self, node: int) -> None:
        """With all that its agent has started."""
        self.nodes.nodes[node].agent.close()
        self.nodes.nodes[node].lost = "its machine was taken back"

    def kept(self, node: int) -> SupervisedServer:
        (kept,) = self.nodes.nodes[node].agent._servers.values()
        return kept

    def switch_off(self, node: int) -> None:
        """As a machine is that is without power: what it had promised never comes, and no connection is closed."""
        kept = self.kept(node)
        assert kept._server is not None
        os.kill(pid_of(kept._server), signal.SIGSTOP)
        time.sleep(1.0)  # requests are under way there
        self.nodes.nodes[node].lost = "its machine was taken back"


@pytest.fixture
def made(tmp_path: Path, start: dict[str, str]) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**changes: str) -> World:
        worlds.append(World(tmp_path, start, **changes))
        return worlds[-1]

    yield make
    for world in worlds:
        world.nodes.close()
        world.run.close()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health").status_code == 200
    return False


@pytest.mark.long
def test_H10_a_run_goes_on_without_a_sampler_node_that_is_lost(made: Callable[..., World], tmp_path: Path) -> None:
    world = made(max_steps="12")
    world.begin()
    world.until(lambda: len(world.steps()) >= 2)
    urls = [one.url for one in world.status_file.servers]
    assert [url.rpartition(":")[0] for url in urls] == ["http://127.0.0.2", "http://127.0.0.3"], "each on its own node"
    keys = [key.encode() for key in (world.kept(1)._spec.key, world.kept(1)._spec.adapters_key)]
    assert not [line for line in commands() if any(key in line for key in keys)], "nobody reads a key in a command"
    world.switch_off(2)
    seen = len(world.steps())
    assert world.end() is None
    lines = world.steps()
    assert [(m["rollout"]["episodes"], m["rollout"]["infra_errors"]) for m in lines] == [(20, 0)] * 12
    assert max(m["learner"]["logprob_gap_mean"] for m in lines) < 1e-4
    assert lines[0]["servers"] == {"answering": 2, "all": 2} and lines[-1]["servers"] == {"answering": 1, "all": 2}
    assert seen < 12, "it was lost on the way"
    (told,) = [text for text in world.said if "has lost" in text]
    assert "node2" in told and urls[1] in told and "its machine was taken back" in told and "1 of 2 servers" in told
    assert sum("never run" in text for text in world.said) == 1
    time.sleep(1.0)
    assert not answers(urls[0]), "servers end with the run"
    world.nodes.close()
    assert not list(tmp_path.glob("cache/vllm/run-*")), "and leave nothing on their nodes"


@pytest.mark.long
def test_H10_a_sampler_node_that_is_lost_before_its_server_answers_is_done_without(
    made: Callable[..., World], tmp_path: Path
) -> None:
    world = made(max_steps="2")
    (tmp_path / "closed").touch()
    world.begin()
    world.until(lambda: list(world.run.path.glob(".ranks-*/servers.json")) and len(world.status_file.servers) == 2)
    assert not any(answers(one.url) for one in world.status_file.servers)
    world.lose(2)
    (tmp_path / "closed").unlink()
    assert world.end() is None
    assert [m["servers"] for m in world.steps()] == [{"answering": 1, "all": 2}] * 2
    (told,) = [text for text in world.said if "has lost" in text]
    assert "node2" in told and "1 of 2 servers go on" in told


def test_a_server_that_ends_while_it_is_waited_for_is_started_again(made: Callable[..., World], tmp_path: Path) -> None:
    world = made(max_steps="2")
    (tmp_path / "closed").touch()
    world.begin()
    world.until(lambda: list(world.run.path.glob(".ranks-*/servers.json")) and len(world.status_file.servers) == 2)
    world.until(lambda: world.kept(1)._server)
    server = world.kept(1)._server
    assert server is not None and not answers(server.url)
    world.until(lambda: has_begun(server))
    os.kill(pid_of(server), signal.SIGKILL)
    (tmp_path / "closed").unlink()
    assert world.end() is None
    assert world.steps()[-1]["servers"] == {"answering": 2, "all": 2}
    assert any("its node has started it again" in text for text in world.said)


def has_begun(server: VllmServer) -> bool:
    with contextlib.suppress(ValueError):
        return pid_of(server) > 0
    return False


def commands() -> Iterator[bytes]:
    """Of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


@pytest.mark.long
def test_a_server_is_started_again_by_its_node_and_without_any_node_left_the_run_ends_and_can_be_resumed(
    made: Callable[..., World],
) -> None:
    """With two learners, which ask the same server."""
    roles = {"cluster.roles.learner": "2", "cluster.roles.sampler": "1"}
    # An evaluation comes before a step's checkpoint, and would be what the loss of the node ends.
    world = made(**roles, **{"max_steps": "40", "orchestrator.eval.interval": "0"})
    world.begin()
    world.until(lambda: len(world.steps()) >= 2)
    (server,) = world.status_file.servers
    httpx.post(f"{server.url}/break", json={"after": 30})
    world.until(lambda: world.status_file.servers[0].starts == 2)
    before = len(world.steps())
    world.until(lambda: len(world.steps()) >= before + 3)
    assert [text for text in world.said if "its node has started it again" in text and "exit code 9" in text]
    world.lose(2)
    error = world.end()
    assert error is not None and "No server of vLLM is left" in error.problem and "--resume" in error.fix
    assert error.problem.rstrip().endswith("its node was lost: its machine was taken back (node node2)")
    assert any("no server is left" in text for text in world.said)
    assert all(m["rollout"]["infra_errors"] == 0 for m in world.steps()), "no episode was spoilt"
    done = len(world.steps())
    assert checkpoints(world.run.path / "checkpoints")[-1][0] == done, "what was trained is kept"
    text = world.run.path / "config.toml"
    text.write_text(text.read_text().replace("max_steps = 40", f"max_steps = {done + 1}"))
    world.run.close()
    world.run = Run.open(world.run.path)
    world.run.lock(time.time())
    world.begin(resuming=True)
    assert world.end() is None and [m["step"] for m in world.steps()] == list(range(done + 1))
