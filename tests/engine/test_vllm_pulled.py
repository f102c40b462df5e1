"""Adapters that servers pull over HTTP, where they do not see the run's files. The plugin is the one that vLLM has; the
servers are stand-ins that ask it as vLLM does (vLLM itself: tests/interop/test_vllm.py)."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine_conformance import CHECKS, PROMPT, agrees, change
from support.vllm_served import make_policy, served

from airloop.engine.base import EngineFailed, Sampling
from airloop.engine.vllm import adapter_server
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm.adapter_server import HttpAdapterStore
from airloop.engine.vllm.adapters import KEPT_VERSIONS
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.plugin import adapters
from airloop.engine.vllm.plugin.adapters import FILES, FOLDER, KEY, LIST_ROUTE, Adapters, signed
from airloop.errors import AirError
from airloop.policy import Policy

SECRET = "a key of both sides"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HttpAdapterStore]:
    made = HttpAdapterStore(tmp_path / "adapters", "tiny", 0, SECRET, "127.0.0.1", 0)
    yield made
    made.clear()


@pytest.fixture
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a server has what it pulled."""
    (tmp_path / "pulled").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "pulled"))
    monkeypatch.setattr(adapters, "PAUSE_S", 0.01)
    return tmp_path / "pulled"


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_pulled_is_what_was_put(store: HttpAdapterStore, pulled: Path) -> None:
    name = store.put(make_policy(), 3)
    server = Adapters(SECRET)
    path = server.pull(name)
    assert pulled in path.parents
    assert {f.name: f.read_bytes() for f in path.iterdir()} == {f: (store.root / name / f).read_bytes() for f in FILES}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["truncated", "altered"])
def test_H9_an_adapter_that_is_not_what_its_name_says_is_refused(
    store: HttpAdapterStore, pulled: Path, file: str, how: str
) -> None:
    name = store.put(make_policy(), 0)
    path = store.root / name / file
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] if how == "truncated" else whole[:-1] + bytes([whole[-1] ^ 1]))
    server = Adapters(SECRET)
    with pytest.raises(ValueError, match=r"has the digest \w+, and its name says \w+"):
        server.pull(name)
    assert not files_below(pulled), "nothing of it is left for vLLM to find"
    path.write_bytes(whole)
    assert server.pull(name).is_dir()


class Cutting(threading.Thread):
    """Between a server and the run: closes each of the first connections after so many bytes of the answer."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        super().__init__(daemon=True)
        self.cuts, self.behind, self.asked = cuts, port, 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                here, _ = self.listening.accept()
            except OSError:
                return
            with here, socket.create_connection(("127.0.0.1", self.behind)) as there:
                there.sendall(here.recv(65536))
                answer = b"".join(iter(lambda: there.recv(65536), b""))
                here.sendall(answer[: self.cuts[self.asked]] if self.asked < len(self.cuts) else answer)
            self.asked += 1


@pytest.mark.parametrize("cuts", [[0], [300], [99_999_999, 2000], [40, 40]], ids=str)
def test_H9_a_transfer_that_breaks_off_is_begun_again(store: HttpAdapterStore, pulled: Path, cuts: list[int]) -> None:
    name = store.put(make_policy(), 0)
    between = Cutting(int(name.rpartition(".")[0].rpartition(":")[2]), cuts)
    between.start()
    again = signed(SECRET, name.partition("@")[0], f"127.0.0.1:{between.port}")
    (store.root / name).rename(store.root / again)
    store.names = [again]
    try:
        assert Adapters(SECRET).pull(again).is_dir() and between.asked > len(cuts)
    finally:
        between.listening.close()


def test_nobody_sends_a_server_anywhere_without_the_key(store: HttpAdapterStore, pulled: Path) -> None:
    name = store.put(make_policy(), 0)
    bare, _, _ = name.partition("@")
    for wrong in (
        signed("another key, as long", bare, "127.0.0.1:1"),
        name.replace("@127.0.0.1", "@127.0.0.2"),
        name.replace("-v0-", "-v1-"),
        f"{bare}@127.0.0.1:1.",
        "air-../../etc@127.0.0.1:1." + "0" * 32,
    ):
        with pytest.raises(ValueError, match=f"this server's {KEY} is not the one"):
            Adapters(SECRET).pull(wrong)
    assert asyncio.run(Adapters(SECRET).resolve_lora("base", "somebody/elses-adapter")) is None
    assert asyncio.run(Adapters(SECRET).resolve_lora("base", bare)) is None, "one that is loaded from files"


def test_nobody_gets_an_adapter_without_the_key_or_anything_else_with_it(store: HttpAdapterStore) -> None:
    name = store.put(make_policy(), 0)
    at = name.partition("@")[2].rpartition(".")[0]
    (store.root / "secret").write_text("of the run")

    def status(route: str, key: str, proven: str = "") -> int:
        headers = {adapters.PROOF: adapters.mac(key, "get", proven or route)}
        return httpx.get(f"http://{at}{route}", headers=headers).status_code

    assert httpx.get(f"http://{at}/{name}/{FILES[0]}").status_code == 403
    assert status(f"/{name}/{FILES[0]}", "another key") == status("/kept", SECRET, f"/{name}/{FILES[0]}") == 403
    assert status(f"/{name}/{FILES[0]}", SECRET) == 200
    for route in (f"/{name}/../secret", "/secret", f"/{name}", "/", f"/{name}/README.md"):
        wire = http.client.HTTPConnection(at)  # as it is, without anything made shorter
        wire.request("GET", route, headers={adapters.PROOF: adapters.mac(SECRET, "get", route)})
        assert wire.getresponse().status == 404, route
    assert httpx.post(f"http://{at}/{name}/{FILES[0]}").status_code == 501


def test_a_crowd_that_says_nothing_is_let_go(
    store: HttpAdapterStore, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_server._AdapterRequest, "timeout", 0.2)
    monkeypatch.setattr(adapter_server, "MOST_CONNECTIONS", 4)
    name = store.put(make_policy(), 0)
    host, _, port = name.partition("@")[2].rpartition(".")[0].rpartition(":")
    crowd = [socket.create_connection((host, int(port))) for _ in range(8)]
    try:
        for one in crowd:
            one.settimeout(10)
            assert one.recv(1) == b"", "some at once, for there are too many, the others after a while"
        deadline = time.monotonic() + 30
        assert store._http_server is not None
        while store._http_server._free._value < 4:  # their threads end a moment after them
            assert time.monotonic() < deadline
            time.sleep(0.02)
        monkeypatch.setattr(adapter_server._AdapterRequest, "timeout", adapter_server.SILENT_S)  # ours may be late
        assert Adapters(SECRET).pull(name).is_dir()
    finally:
        for one in crowd:
            one.close()


def test_one_that_says_a_letter_now_and_then_is_let_go_as_well(
    store: HttpAdapterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_server._AdapterRequest, "timeout", 1.0)
    host, _, port = store.put(make_policy(), 0).partition("@")[2].rpartition(".")[0].rpartition(":")
    until = time.monotonic() + 30
    with socket.create_connection((host, int(port))) as slow, contextlib.suppress(ConnectionError):
        slow.settimeout(0.2)
        while time.monotonic() < until:
            slow.sendall(b"G")
            with contextlib.suppress(TimeoutError):
                if slow.recv(1) == b"":
                    break
    assert time.monotonic() < until


def test_what_the_run_serves_no_longer_goes_from_the_server_as_well(store: HttpAdapterStore, pulled: Path) -> None:
    policy, server = make_policy(), Adapters(SECRET)
    (pulled / "others").write_text("")
    for version in range(KEPT_VERSIONS + 2):
        change(policy, version)
        path = server.pull(store.put(policy, version))
    assert sorted(one.name for one in path.parent.glob("air-*")) == sorted(store.names)
    assert len(store.names) == KEPT_VERSIONS and (pulled / "others").exists()
    with pytest.raises(ValueError, match="404"):
        server.pull(signed(SECRET, f"air-00000000-v9-{'0' * 32}", path.name.partition("@")[2].rpartition(".")[0]))


def test_ranks_that_pull_one_version_at_the_same_time_all_have_it(
    store: HttpAdapterStore, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, server, fetched, get = store.put(make_policy(), 0), Adapters(SECRET), list[str](), Adapters._get
    together = threading.Barrier(8)

    def slow(self: Adapters, at: str, route: str, into: Path) -> None:
        fetched.append(route)
        time.sleep(0.05)  # long enough for all of them to find nothing there
        get(self, at, route, into)

    def pull(_: int) -> Path:
        together.wait()
        return server.pull(name)

    monkeypatch.setattr(Adapters, "_get", slow)
    with ThreadPoolExecutor(8) as pool:
        (path,) = set(pool.map(pull, range(8)))
    assert {file.name for file in path.iterdir()} == set(FILES)
    assert len(fetched) == len(set(fetched)) == len(FILES) + 1, "each is fetched once, with what the run still has"


def test_a_version_that_comes_while_old_ones_are_removed_stays(
    store: HttpAdapterStore, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, server, get = make_policy(), Adapters(SECRET), Adapters._get
    newer: list[Path] = []

    def meanwhile(self: Adapters, at: str, route: str, into: Path) -> None:
        get(self, at, route, into)
        if route == LIST_ROUTE and not newer:
            newer.append(into)
            change(policy, 1)
            newer[0] = server.pull(store.put(policy, 1))

    first = store.put(policy, 0)
    monkeypatch.setattr(Adapters, "_get", meanwhile)
    assert server.pull(first).is_dir() and newer[0].is_dir() and newer[0].name == store.names[-1]


def test_several_runs_use_one_server_and_none_takes_what_another_has(
    store: HttpAdapterStore, tmp_path: Path, pulled: Path
) -> None:
    other, policy, server = (
        HttpAdapterStore(tmp_path / "b", "tiny", 0, SECRET, "127.0.0.1", 0),
        make_policy(),
        Adapters(SECRET),
    )
    try:
        theirs = server.pull(other.put(policy, 0))
        for version in range(KEPT_VERSIONS + 2):
            change(policy, version)
            ours = server.pull(store.put(policy, version))
        assert theirs.is_dir() and ours.is_dir() and theirs.name.partition("@")[2] != ours.name.partition("@")[2]
    finally:
        other.clear()


def test_an_address_that_is_not_ours_is_told(tmp_path: Path) -> None:
    store = HttpAdapterStore(tmp_path, "tiny", 0, SECRET, "203.0.113.1", 0)
    with pytest.raises(AirError, match=r"cannot listen on 203\.0\.113\.1:0") as told:
        store.put(make_policy(), 0)
    assert "adapters_host" in told.value.fix


def test_the_folder_is_a_plugin_of_vllm_that_needs_nothing_of_ours(tmp_path: Path, air: Any) -> None:
    code, text, _ = air("vllm", "plugin", "--out", str(tmp_path / "plugin"))
    assert code == 0 and KEY in text
    again = air("vllm", "plugin", "--out", str(tmp_path / "plugin"))
    assert again[0] == 1 and "not empty" in again[2]
    code_there = (
        "from importlib.metadata import entry_points; points = entry_points(group='vllm.general_plugins'); "
        "found = {p.name: p.load() for p in points}; found['air_adapters'](); "
        "import sys; print(*sorted(found), 'airloop' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code_there],  # without anything that is installed
        env={"PYTHONPATH": str(tmp_path / "plugin")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "air_adapters air_weights False\n"


Check = Callable[[Any, Policy], Awaitable[None]]
PULLS = {"pulls": True, "env": {KEY: SECRET}}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_whose_servers_pull_does_what_every_engine_must(
    tmp_path: Path, store: HttpAdapterStore, pulled: Path, check: Check
) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        await check(engine, policy)
        for server in engine.servers:
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{server.url}/loads")).json() == [], "none was told of a file of ours"

    served(tmp_path, work, count=2, context=96, store=store, **PULLS)
    assert not store.names and not files_below(store.root)


@pytest.mark.slow
def test_H9_a_version_that_came_altered_is_not_served_until_it_comes_whole(
    tmp_path: Path, store: HttpAdapterStore, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_S", 0.1)
    hurt = list[Path]()

    def put(policy: Policy, version: int) -> str:
        name = HttpAdapterStore.put(store, policy, version)
        hurt.append(store.root / name / FILES[1])
        hurt[0].rename(tmp_path / "whole")
        hurt[0].write_bytes((tmp_path / "whole").read_bytes()[:-100])
        return name

    async def work(engine: VllmEngine, policy: Policy) -> None:
        (server,) = engine.servers
        change(policy, 1)
        monkeypatch.setattr(store, "put", put)
        publishing = asyncio.ensure_future(engine.publish(1))
        while "has the digest" not in server.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert not publishing.done() and server.starts == 1
        os.replace(tmp_path / "whole", hurt[0])
        await publishing
        reply = await engine.generate(PROMPT, Sampling(8))
        assert reply.version == 1 and agrees(policy, PROMPT, reply) and not server.lost

    served(tmp_path, work, store=store, **PULLS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "told"),
    [({}, "has nothing to pull adapters with"), ({KEY: "another key of theirs"}, "is not the one that")],
)
def test_a_server_without_the_plugin_or_with_another_key_is_told_at_the_start(
    tmp_path: Path, store: HttpAdapterStore, env: dict[str, str], told: str
) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        raise AssertionError("it was admitted")

    with pytest.raises(EngineFailed, match=told) as refused:
        served(tmp_path, work, store=store, pulls=True, env=env)
    assert "air vllm plugin" in refused.value.fix and KEY in refused.value.fix
