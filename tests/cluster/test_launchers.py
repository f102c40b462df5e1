"""Launchers: this machine's and the one above nodes do the same; and what only nodes can do wrong."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launcher_contract import Told, check_launcher, ended, new_run
from support.rank_runs import FLAGS, same, started_from, words
from support.scripted_nodes import ScriptedNodes
from support.warm_ranks import WarmServer

from airloop.cluster.agent import NodeAgent, versions
from airloop.cluster.launcher import ClusterLauncher
from airloop.cluster.network import free_ports, route_to
from airloop.config import load_config
from airloop.errors import AirError
from airloop.launch import local
from airloop.launch.base import Launcher
from airloop.launch.local import LocalLauncher
from airloop.launch.monitor import run_ranks
from airloop.runs.run import Run
from airloop.watch.display.display import Display

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", WarmServer)


def above_nodes(twice: bool) -> ClusterLauncher:
    nodes = ScriptedNodes(2)
    for node in nodes.nodes:
        node.twice = twice
    return ClusterLauncher(nodes, print)


LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "local": LocalLauncher,
    "nodes": lambda: above_nodes(False),
    "every call comes twice": lambda: above_nodes(True),
}


@pytest.mark.parametrize("make", LAUNCHERS.values(), ids=LAUNCHERS.keys())
def test_what_every_launcher_must_do(make: Callable[[], Launcher], tmp_path: Path) -> None:
    run = new_run(tmp_path, nodes=1 if make is LocalLauncher else 2, ranks=4)
    launcher = make()
    try:
        check_launcher(launcher, run)
    finally:
        launcher.close()
        run.close()


@pytest.fixture
def nodes() -> Iterator[ScriptedNodes]:
    found = ScriptedNodes(2)
    yield found
    found.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = new_run(tmp_path, nodes=2, ranks=2)
    yield made
    made.close()


def test_nodes_make_the_run_that_one_machine_makes_although_every_call_comes_twice(tmp_path: Path) -> None:
    start, found = started_from(tmp_path / "start"), []
    for count in (1, 2):
        more = {"output_dir": str(tmp_path / str(count)), "trainer.processes": "2", "model.device": "cpu"}
        config = load_config(words({**FLAGS, **start, **more, "cluster.nodes": str(count)}))
        run = Run.create(config, config.task)
        run_ranks(run, Display(quiet=True), False, LocalLauncher() if count == 1 else above_nodes(True))
        run.close()
        found.append(run)
    same(*found)
    assert not list(found[1].path.glob(".[rs]*"))  # what was only there to find each other


def test_H10_a_lost_node_is_told_in_the_name_of_its_ranks(nodes: ScriptedNodes, run: Run) -> None:
    launcher = ClusterLauncher(nodes, print)
    told = Told()
    process = launcher.spawn(launcher.rank_specs(run, False)[1], told)
    nodes.nodes[1].lost = "its machine was taken back"
    assert ended(process) == 1 == process.wait()
    ((name, problem, fix, noticed),) = told.events
    assert (name, noticed) == ("error", False)
    assert "The node node1 of 2 was lost: its machine was taken back" in str(problem)
    assert f"air train --resume {run.path}" in str(fix)
    process.send_signal(signal.SIGINT)  # nobody is there
    launcher.close()


def test_a_node_that_is_lost_before_the_ranks_are_started(nodes: ScriptedNodes, run: Run) -> None:
    nodes.nodes[1].lost = "it never came"
    with pytest.raises(AirError, match="The node node1 of 2 was lost: it never came"):
        ClusterLauncher(nodes, print).rank_specs(run, False)


def test_versions_that_differ_are_refused(nodes: ScriptedNodes, run: Run) -> None:
    facts = {**nodes.nodes[1].agent.facts("127.0.0.1"), "versions": {**versions(), "torch": "1.0", "air": "0.0.9"}}
    nodes.nodes[1].says["facts"] = facts
    with pytest.raises(AirError, match=r"The node node1 has air 0\.0\.9 \(here .*, torch 1\.0 \(here"):
        ClusterLauncher(nodes, print).rank_specs(run, False)


def test_a_directory_that_a_node_does_not_share_is_refused(nodes: ScriptedNodes, run: Run) -> None:
    nodes.nodes[1].says["read"] = None
    with pytest.raises(AirError, match="is not the same directory on every node: node1 cannot read"):
        ClusterLauncher(nodes, print).rank_specs(run, False)
    assert not list(run.path.glob(".shared-*"))


def test_H10_a_run_goes_on_with_the_nodes_that_are_left(run: Run) -> None:
    left, said = ScriptedNodes(1), list[str]()
    (spec,) = ClusterLauncher(left, said.append).rank_specs(run, True)
    assert (spec.rank, spec.size, spec.here) == (0, 1, 1)
    assert any("1 of 2 nodes are there" in text for text in said)
    assert sum("never run" in text for text in said) == 1
    left.close()


def test_gpus_are_those_that_ray_gives_to_each_node(nodes: ScriptedNodes, tmp_path: Path) -> None:
    """Without any: what is ordered, and what is refused. No rank is started."""
    config = load_config(
        words({**FLAGS, "cluster.nodes": "2", "cluster.gpus_per_node": "2", "output_dir": str(tmp_path)})
    )
    run = Run.create(config, config.task)
    for node, names in zip(nodes.nodes, (["0", "1"], ["GPU-7", "GPU-9"]), strict=True):
        node.says["facts"] = {**node.agent.facts("127.0.0.1"), "gpus": names, "interface": "eth7"}
    rank_specs = ClusterLauncher(nodes, print).rank_specs(run, False)
    assert [(o.rank, o.gpu, o.device, o.here, o.size) for o in rank_specs] == [
        (rank, gpu, "cuda", 2, 4) for rank, gpu in enumerate(["0", "1", "GPU-7", "GPU-9"])
    ]
    seen = local._surroundings(rank_specs[2])
    assert seen == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "eth7", "CUDA_VISIBLE_DEVICES": "GPU-7"}
    nodes.nodes[1].says["facts"]["gpus"] = ["GPU-7"]
    with pytest.raises(AirError, match="The node node1 shows 1 GPUs to what Ray starts there, not 2"):
        ClusterLauncher(nodes, print).rank_specs(run, False)
    run.close()


def test_news_are_kept_until_they_have_arrived() -> None:
    agent = NodeAgent({}, ".")
    for text in ("one", "two"):
        agent._add_event(3, "line", text)
    first = agent.events(0, 0.0)
    assert first == agent.events(0, 0.0) == [(1, 3, "line", "one"), (2, 3, "line", "two")]
    agent._add_event(3, "exit", "0")
    assert agent.events(2, 0.0) == [(3, 3, "exit", "0")]
    began = time.monotonic()
    assert agent.events(3, 0.3) == [] and time.monotonic() - began >= 0.3


def test_the_route_to_a_machine_is_the_one_that_the_kernel_chooses() -> None:
    assert route_to("127.0.0.1") == ("127.0.0.1", "lo")
    ports = free_ports("127.0.0.1", 20)
    assert len({*ports}) == 20 and min(ports) > 0 and max(ports) < 65536


def test_the_agents_facts_can_travel() -> None:
    facts = NodeAgent({}, ".").facts("127.0.0.1")
    assert json.loads(json.dumps(facts)) == facts and facts["interface"] == "lo"
    assert facts["versions"]["torch"] and facts["versions"]["code of air"]
