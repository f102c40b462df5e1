"""A server that a node's agent supervises: how it is started, ended and started again, and what it prints."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.guarded_process import child_of, pid_of
from support.sampler_configs import CPUS, WAIT_S, config_of, until

from airloop.cluster import supervised_server
from airloop.cluster.agent import NodeAgent
from airloop.cluster.network import free_ports
from airloop.cluster.supervised_server import ServerSpec, SupervisedServer
from airloop.engine.vllm.engine import STARTS
from airloop.engine.vllm.plugin.adapters import FOLDER, KEY
from airloop.engine.vllm.remote_servers import EndRequest
from airloop.engine.vllm.server import VllmServer
from airloop.models.tiny import save_tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


def test_a_line_that_is_longer_than_what_is_read_at_once_comes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_server, "PIECE", 8)
    told: list[str] = []
    server = SupervisedServer.__new__(SupervisedServer)
    server._on_event, server._read = lambda kind, text: told.append(text), 0
    server._server = SimpleNamespace(log=tmp_path / "log")  # type: ignore[assignment]
    (tmp_path / "log").write_text("one\n" + "x" * 20 + "\ntwo\nhal")
    server._follow(whole=False)
    assert told == ["one", "x" * 8, "x" * 8, "x" * 4, "two"]
    server._follow(whole=True)
    assert told[-1] == "hal"


def order_of(folder: Path, script: str) -> ServerSpec:
    """Of a server whose interpreter is a script of ours."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    named = {"inference.vllm.python": str(program), "model.name": str(save_tiny(folder / "tiny"))}
    config = config_of(**CPUS, **named).model_dump(mode="json", exclude_none=True)
    return ServerSpec(config, "float32", 0, "127.0.0.3", 8123, None, "the key", "the other key")


def kept_by(agent: NodeAgent, spec: ServerSpec) -> Iterator[tuple[str, str]]:
    """What an agent tells of a server, in the end its exit."""
    agent.serve(vars(spec))
    seen, deadline = 0, time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for number, who, kind, text in agent.events(seen, 0.2):
            assert who == spec.url
            seen = number
            yield kind, text
            if kind == "exit" or (kind == "event" and json.loads(text)[0] == "failed"):
                return
    raise AssertionError("it has told of no end")


def test_a_server_is_started_with_keys_in_its_environment_on_the_address_of_its_node(tmp_path: Path) -> None:
    spec = order_of(tmp_path, f'env > {tmp_path}/env; echo "$@" > {tmp_path}/words; exec sleep 60')
    agent = NodeAgent({}, ".")
    agent.serve(vars(spec))
    agent.serve(vars(spec))  # a call may come twice
    until((tmp_path / "words").exists)
    until(lambda: (tmp_path / "words").read_text())
    given = (tmp_path / "words").read_text().split()
    options = dict(itertools.pairwise(given))
    assert (options["--host"], options["--port"]) == ("127.0.0.3", "8123")
    assert options["--model"] == str(tmp_path / "tiny") and options["--dtype"] == "float32"
    env = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert (env["VLLM_API_KEY"], env[KEY]) == ("the key", "the other key")
    assert not {"the", "key", "other"} & {*given}, "a command can be read by everybody"
    plugin = Path(env["PYTHONPATH"].split(":")[0])
    assert (plugin / "airloop_vllm" / "adapters.py").is_file() and plugin.is_relative_to(env[FOLDER])
    assert "VLLM_SERVER_DEV_MODE" not in env, "routes that ask for no key are not there"
    assert len(agent._servers) == 1
    agent.close()
    assert not plugin.exists()


def test_a_server_that_ends_is_started_again_a_few_times(tmp_path: Path) -> None:
    spec = order_of(tmp_path, f"echo $PPID >> {tmp_path}/starts; echo no GPU here; printf half; exit 7")
    agent = NodeAgent({}, ".")
    told = list(kept_by(agent, spec))
    agent.close()
    assert [json.loads(text) for kind, text in told if kind == "event"] == [["started", 2, 7], ["started", 3, 7]]
    assert told[-1] == ("exit", "7") and len((tmp_path / "starts").read_text().split()) == STARTS
    lines = [text for kind, text in told if kind == "line"]
    assert "".join(lines) == "no GPU herehalf" * STARTS and lines[0] == "no GPU here"


def test_H2_one_that_hangs_is_ended_and_started_again_and_only_that_one(tmp_path: Path) -> None:
    spec = order_of(tmp_path, f"echo up >> {tmp_path}/starts; exec sleep 60")
    agent = NodeAgent({}, ".")
    agent.serve(vars(spec))
    until((tmp_path / "starts").exists)
    agent.replace_server(spec.url, asdict(EndRequest(1)))
    until(lambda: [text for _, _, kind, text in agent.events(0, 0.1) if kind == "event" and '"started", 2' in text])
    until(lambda: len((tmp_path / "starts").read_text().split()) == 2)  # its script runs a little later
    agent.replace_server(spec.url, asdict(EndRequest(1)))  # the same call again, or one that comes late
    time.sleep(0.5)
    agent.events(0, 0.1)
    server = agent._servers[spec.url]._server
    assert server is not None and server.starts == 2 and server.ended() is None
    assert len((tmp_path / "starts").read_text().split()) == 2
    agent.close()


def test_H2_a_request_that_comes_before_its_start_is_known_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and the thread that has started it has not come back yet."""
    spec = order_of(tmp_path, f"echo up >> {tmp_path}/starts; exec sleep 60")
    start, goes_on = VllmServer.start, threading.Event()

    def slowly(server: VllmServer) -> None:
        start(server)
        assert goes_on.wait(WAIT_S)

    monkeypatch.setattr(VllmServer, "start", slowly)
    agent = NodeAgent({}, ".")
    agent.serve(vars(spec))
    until((tmp_path / "starts").exists)
    asks = threading.Thread(target=agent.replace_server, args=(spec.url, asdict(EndRequest(1))))
    asks.start()
    asks.join(0.5)
    goes_on.set()
    asks.join(WAIT_S)
    until(lambda: any('"started", 2' in text for *_, text in agent.events(0, 0.1)))
    agent.close()


def test_its_guard_is_not_ended_by_signals_and_it_is_without_handlers_of_its_own(tmp_path: Path) -> None:
    """SIGTERM ends it, as its guard asks it to, well before it is killed."""
    spec = order_of(tmp_path, f"touch {tmp_path}/up; exec sleep 60")
    supervised = SupervisedServer(spec, tmp_path, threading.Lock(), lambda kind, text: None)
    until((tmp_path / "up").exists)
    until(lambda: supervised._server is not None)
    server = supervised._server
    assert server is not None and server._process is not None
    for guard in (server._process.pid, child_of(server._process.pid)):
        for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for whoever has started it
            os.kill(guard, number)
    time.sleep(0.5)
    assert server.ended() is None and pid_of(server)
    supervised.end()
    supervised.wait(WAIT_S)
    assert server.ended() == -signal.SIGTERM & 0xFF


# What answers GET /health, and writes a line when it does.
HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", file=sys.stderr)
        self.send_response(200)
        self.end_headers()
host, port = sys.argv[1:]
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def test_H2_one_that_the_first_rank_cannot_reach_is_ended_where_its_own_node_cannot_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network may be at fault, or the process stands still: its port is open then, and no request ends."""
    monkeypatch.setattr(supervised_server, "SILENT_S", 0.5)
    (tmp_path / "healthy.py").write_text(HEALTHY)
    port = free_ports("127.0.0.3", 1)[0]
    spec = order_of(tmp_path, f"exec {sys.executable} {tmp_path}/healthy.py 127.0.0.3 {port}")
    spec = replace(spec, port=port)
    agent = NodeAgent({}, ".")

    def told(what: str) -> bool:
        return any(what in text for *_, text in agent.events(0, 0.1))

    agent.serve(vars(spec))
    until(lambda: answers(f"{spec.url}/"))
    agent.replace_server(spec.url, asdict(EndRequest(1, silent=True)))
    until(lambda: sum("asked" in text for *_, text in agent.events(0, 0.1)) >= 2)
    time.sleep(0.5)
    assert not told('"started", 2') and answers(f"{spec.url}/"), "it answers its node: the network is at fault"
    server = agent._servers[spec.url]._server
    assert server is not None
    os.kill(pid_of(server), signal.SIGSTOP)
    agent.replace_server(spec.url, asdict(EndRequest(1, silent=True)))
    until(lambda: told('"started", 2'))
    until(lambda: answers(f"{spec.url}/"))
    agent.close()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=1.0).status_code == 200
    return False


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"inference": {"backend": "vllm", "vllm": {"python": "nowhere/python"}}},
            "is no program. (name an interpreter",
        ),
        ({"model": {"name": "./nothing", "device": "cpu"}}, "there is no model at './nothing'"),
    ],
)
def test_what_a_node_lacks_is_told(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    spec = order_of(tmp_path, "exit 1")
    agent = NodeAgent({}, ".")
    ((kind, text),) = kept_by(agent, replace(spec, config={**spec.config, **wrong}))
    assert kind == "event" and told in json.loads(text)[1]
    agent.close()


def test_one_that_is_ended_before_it_is_started_does_not_stay(tmp_path: Path) -> None:
    spec, model_lock = order_of(tmp_path, f"touch {tmp_path}/up; exec sleep 60"), threading.Lock()
    model_lock.acquire()
    server = SupervisedServer(spec, tmp_path, model_lock, lambda kind, text: None)
    server.end()
    model_lock.release()
    until(lambda: server._server is not None)
    assert server._server is not None
    until(lambda: server._server.ended() is not None)
