"""Parts of samplers on nodes of their own: what the board says, and when one that is gone is hung up on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.launcher_contract import Told, ended
from support.sampler_configs import CPUS, WAIT_S, config_of, until
from support.scripted_nodes import ScriptedNodes
from support.warm_ranks import WarmServer

from airloop.cluster.launcher import ClusterLauncher
from airloop.cluster.node import NodeLost
from airloop.cluster.samplers import SamplerNode, SamplerNodes, share_out
from airloop.cluster.supervised_server import ServerSpec
from airloop.engine.vllm.plugin.adapters import KEY
from airloop.engine.vllm.remote_servers import (
    API_KEY,
    STATUS_FILE_VARIABLE,
    EndRequest,
    NodeServer,
    ServerStatus,
    ServerStatusFile,
)
from airloop.engine.vllm.server import ServerLost
from airloop.errors import AirError
from airloop.launch import local
from airloop.launch.base import RankSpec
from airloop.launch.local import LocalLauncher
from airloop.runs.run import Run

GPUS = {**CPUS, "model.device": "auto", "cluster.gpus_per_node": "2"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vllm"


def status_file_of(folder: Path, *servers: ServerStatus) -> ServerStatusFile:
    status_file = ServerStatusFile(folder / "servers.json")
    status_file.write("10.0.0.5", servers)
    return status_file


HERE = ServerStatus("http://127.0.0.1:9", "node1", "servers/0.log")


def test_the_board_says_how_servers_are_and_which_is_to_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status_file = status_file_of(tmp_path, HERE, replace(HERE, url="http://127.0.0.1:10", starts=3))
    monkeypatch.setenv(STATUS_FILE_VARIABLE, str(status_file.path))
    given = ServerStatusFile.from_environment()
    assert given is not None and given.host == "10.0.0.5" and given.servers == status_file.servers
    given.request_end("http://127.0.0.1:10", EndRequest(3))
    assert [status_file.take_end_request(0), status_file.take_end_request(1), status_file.take_end_request(1)] == [
        None,
        EndRequest(3),
        None,
    ]
    status_file.path.unlink()
    assert given.servers == [] and NodeServer(HERE.url, status_file=given).lost_for_good() == "", "it goes with the run"


def test_what_has_replaced_a_server_is_not_ended_for_what_was_found_of_the_one_before(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def main() -> None:
        there = await asyncio.start_server(answer, "127.0.0.1", 0)
        here = replace(HERE, url=f"http://127.0.0.1:{there.sockets[0].getsockname()[1]}")
        status_file = status_file_of(tmp_path, here)
        server = NodeServer(here.url, status_file=status_file)
        server.start()
        await server.end()
        assert status_file.take_end_request(0) == EndRequest(1)
        status_file.write("", [replace(here, starts=2, code=9)])
        await server.end()
        assert status_file.take_end_request(0) is None
        server.start()
        await server.end()
        assert status_file.take_end_request(0) == EndRequest(2)
        there.close()
        await there.wait_closed()
        await server.end()
        assert status_file.take_end_request(0) == EndRequest(2, silent=True)
        await server.close()

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_who_waits_for_a_server_that_is_gone_is_told_at_once(tmp_path: Path) -> None:
    """A machine without power closes no connection: this one takes requests and never answers."""
    status_file = status_file_of(tmp_path, HERE)

    async def main() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        status_file.write("", [replace(HERE, url=url)])
        server = NodeServer(url, status_file=status_file, pulls=True)
        asked = [
            asyncio.ensure_future(anext(aiter(server.stream({"model": "a"})))),
            asyncio.ensure_future(server.load("air-1", tmp_path)),
        ]
        await asyncio.sleep(0.3)
        assert not any(one.done() for one in asked) and server.lost_for_good() == ""
        status_file.write("", [replace(HERE, url=url, gone="its node was lost: no power")])
        assert server.lost_for_good() == "its node was lost: no power (node node1)"
        server.cancel_requests()
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)
        assert all(isinstance(one, ServerLost) and "no power" in str(one) for one in found), found
        with pytest.raises(AirError, match="is gone: its node was lost: no power"):
            await server.ready()
        await server.close()
        silent.close()

    asyncio.run(main())


def test_a_process_that_has_taken_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """However quick its node was: it has to show first that it computes what the trainer does."""
    status_file = status_file_of(tmp_path, HERE)
    server = NodeServer(HERE.url, status_file=status_file)
    server.start()
    server._adapters = ["air-1"]
    assert server.ended() is None
    status_file.write("", [replace(HERE, starts=2, code=9)])
    assert server.ended() == 9
    with pytest.raises(AirError, match=r"did not start \(exit code 9\)"):
        asyncio.run(server.ready())
    assert server._adapters == []
    server.start()
    assert server.ended() is None and server.starts == 2


@pytest.mark.parametrize(("found", "shared"), [(3, (1, 2)), (2, (1, 1))], ids=["all of them", "one sampler is missing"])
def test_nodes_that_are_there_are_shared_out(found: int, shared: tuple[int, int]) -> None:
    assert share_out(config_of(**CPUS), found) == shared
    two = config_of(**{**CPUS, "cluster.nodes": "4", "cluster.roles.learner": "2"})
    assert [share_out(two, count) for count in (2, 3, 4)] == [(1, 1), (2, 1), (2, 2)]
    with pytest.raises(AirError, match="wants 1 learners and 2 samplers, and one node is there"):
        share_out(config_of(**CPUS), 1)


class Recording:
    """Implements Node: what its agent would be asked to start, where there is no GPU to start it on."""

    def __init__(self, name: str, lost: bool = False) -> None:
        self.name, self.lost = name, lost
        self.rank_specs: list[ServerSpec] = []

    def call(self, method: str, *given: Any) -> Any:
        if self.lost:
            raise NodeLost("no power")
        if method == "serve":
            self.rank_specs.append(ServerSpec(**given[0]))
        return {"free_ports": [7000, 7001], "events": []}.get(method)


def samplers_on(tmp_path: Path, gpus: list[str], **more: str) -> tuple[SamplerNodes, list[Recording]]:
    config = config_of(**GPUS, output_dir=str(tmp_path), **more)
    run = Run.create(config, config.task)
    nodes = [Recording("a"), Recording("b")]
    facts = [{"gpus": gpus, "address": f"10.0.0.{number}"} for number in (6, 7)]
    found = [SamplerNode(*both) for both in zip(nodes, facts, strict=True)]
    return SamplerNodes(run, found, tmp_path, "10.0.0.5", print), nodes


def test_a_server_on_each_gpu_of_each_sampler_node(tmp_path: Path) -> None:
    samplers, nodes = samplers_on(tmp_path, ["GPU-7", "GPU-9", "GPU-11"])
    environment = samplers.start()
    rank_specs = [spec for node in nodes for spec in node.rank_specs]
    assert [(o.number, o.host, o.gpu, o.dtype) for o in rank_specs] == [
        (0, "10.0.0.6", "GPU-7", "float32"),
        (1, "10.0.0.6", "GPU-9", "float32"),
        (2, "10.0.0.7", "GPU-7", "float32"),
        (3, "10.0.0.7", "GPU-9", "float32"),
    ]
    assert (
        {o.key for o in rank_specs}
        == {environment[API_KEY]}
        != {o.adapters_key for o in rank_specs}
        == {environment[KEY]}
    )
    status_file = ServerStatusFile(Path(environment[STATUS_FILE_VARIABLE]))
    assert status_file.host == "10.0.0.5" and [one.url for one in status_file.servers] == [o.url for o in rank_specs]
    assert "key" not in status_file.path.read_text()
    samplers.close(1.0)
    named, _ = samplers_on(tmp_path, ["0", "1"], **{"inference.vllm.adapters_host": "192.168.0.5"})
    assert ServerStatusFile(Path(named.start()[STATUS_FILE_VARIABLE])).host == "192.168.0.5", (
        "the user knows a better way"
    )
    named.close(1.0)


def test_a_sampler_node_with_too_few_gpus_is_refused_and_one_that_is_lost_at_once_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samplers, _ = samplers_on(tmp_path, ["0"])
    with pytest.raises(AirError, match="The node a shows 1 GPUs to what Ray starts there, not 2"):
        samplers.start()
    samplers, nodes = samplers_on(tmp_path, ["0", "1"])
    nodes[0].lost = True
    status_file = ServerStatusFile(Path(samplers.start()[STATUS_FILE_VARIABLE]))
    assert [(one.url, one.node) for one in status_file.servers] == [
        ("http://10.0.0.7:7000", "b"),
        ("http://10.0.0.7:7001", "b"),
    ]
    assert [spec.number for spec in nodes[1].rank_specs] == [0, 1]
    assert "the sampler node a was lost before the run had begun: no power" in capsys.readouterr().out
    samplers.close(1.0)
    samplers, nodes = samplers_on(tmp_path, ["0", "1"])
    nodes[0].lost = nodes[1].lost = True
    with pytest.raises(AirError, match="Every sampler node was lost before the run had begun"):
        samplers.start()


@pytest.mark.slow
def test_keys_go_to_ranks_by_their_environment_and_not_by_their_command(tmp_path: Path) -> None:
    launcher = LocalLauncher()
    launcher._fork_server_tried = True  # each is started anew, as on GPUs
    told = Told()
    spec = RankSpec(
        str(tmp_path), 0, 1, str(tmp_path), "cpu", False, environment={API_KEY: "secret-1", KEY: "secret-2"}
    )
    process = launcher.spawn(spec, told)
    place = Path(f"/proc/{process.pid}")
    until(lambda: b"airloop.rank" in (place / "cmdline").read_bytes())
    assert b"secret" not in (place / "cmdline").read_bytes()
    assert f"{API_KEY}=secret-1".encode() in (place / "environ").read_bytes()
    process.kill()  # what it would say of a directory that is no run, launcher_contract.py asks
    ended(process)
    launcher.close()


@pytest.mark.slow
def test_a_learner_that_is_lost_is_told_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three nodes train; what the third lacks is nobody's affair before the ranks are there."""
    monkeypatch.setattr(local, "ForkServer", WarmServer)
    more = {"cluster.roles.learner": "2", "cluster.roles.sampler": "1", "inference.vllm.python": "nowhere/python"}
    config = config_of(**{**CPUS, **more}, output_dir=str(tmp_path))
    run, nodes, said = Run.create(config, config.task), ScriptedNodes(3), list[str]()
    launcher = ClusterLauncher(nodes, said.append)
    rank_specs = launcher.rank_specs(run, False)
    assert [(o.rank, o.size, o.here) for o in rank_specs] == [(0, 2, 1), (1, 2, 1)]
    assert {*rank_specs[0].environment} == {STATUS_FILE_VARIABLE, KEY, API_KEY} and rank_specs[
        0
    ].environment == rank_specs[1].environment
    until(lambda: any("is no program" in text and "no server is left" in text for text in said))
    told = Told()
    process = launcher.spawn(rank_specs[1], told)
    nodes.nodes[1].lost = "its machine was taken back"
    assert ended(process) == 1
    assert "The node node1 of 2 was lost: its machine was taken back" in str(told.events[0][1])
    launcher.close()
    run.close()
