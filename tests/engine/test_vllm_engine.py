"""The engine of vLLM servers, over real sockets and processes: what is sampled, what a lost server costs. The servers
are stand-ins with our own engine inside; vLLM itself is in tests/interop/test_vllm.py."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.engine_conformance import CHECKS, PROMPT, agrees, change
from support.guarded_process import child_of
from support.vllm_served import broken, make_policy, served
from support.vllm_standin import StandInServer, stand_in

from airloop.engine.base import EngineFailed, Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm import shared as shared_engines
from airloop.engine.vllm.adapters import KEPT_VERSIONS, AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.remote_servers import NodeServer
from airloop.engine.vllm.server import PROCESS_GUARD, ServerLost, VllmServer
from airloop.engine.vllm.shared import SharedEngine
from airloop.errors import AirError
from airloop.policy import Policy
from airloop.ranks import Ranks

Check = Callable[[Any, Policy], Awaitable[None]]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_does_what_every_engine_must(tmp_path: Path, check: Check) -> None:
    served(tmp_path, check, count=2, context=96)
    assert not list((tmp_path / "adapters").iterdir()), "adapters go with the engine"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_embedded_engine_does_too(check: Check) -> None:
    async def whole() -> None:
        policy = make_policy()
        engine = EmbeddedEngine(policy, context=96, page_size=8)
        try:
            await check(engine, policy)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_old_adapters_go(tmp_path: Path) -> None:
    policy, store = make_policy(), AdapterStore(tmp_path, "tiny")
    names = [store.put(policy, version) for version in range(KEPT_VERSIONS + 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[-KEPT_VERSIONS:])
    assert store.put(policy, KEPT_VERSIONS + 1) == names[-1], (
        "the same weights of the same version are the same adapter"
    )


def test_H1_a_server_killed_in_the_middle_of_replies_loses_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engines, "WATCH_S", 600
    )  # the other one takes its replies on; it is not started again meanwhile

    async def work(engine: VllmEngine, policy: Policy) -> None:
        victim, other = engine.servers
        await broken(victim, after=40)
        asked = [engine.generate([*PROMPT, i], Sampling(24, seed=i), order=f"{i}") for i in range(8)]
        replies = await asyncio.gather(*asked)
        assert victim.lost and not other.lost
        assert all(len(r.token_ids) == 24 and agrees(policy, [*PROMPT, i], r) for i, r in enumerate(replies))

    served(tmp_path, work, count=2)


def test_a_server_that_ended_is_started_again_and_serves_what_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_S", 0.2)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        victim, _ = engine.servers
        await broken(victim, after=1)
        await asyncio.gather(*(engine.generate(PROMPT, Sampling(4, seed=i), order=f"{i}") for i in range(4)))
        assert victim.lost or victim.starts == 2
        change(policy, 1)
        await engine.publish(1)
        while victim.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        assert victim.starts == 2
        replies = await asyncio.gather(*(engine.generate([i + 1], Sampling(8), order=f"n{i}") for i in range(8)))
        assert all(agrees(policy, [i + 1], r) for i, r in enumerate(replies))

    served(tmp_path, work, count=2)


def test_H3_without_any_server_left_whoever_waits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        await broken(engine.servers[0], after=3)
        before = engine.downtime.seconds
        reply = await engine.generate(PROMPT, Sampling(24))
        assert engine.servers[0].starts == 2 and agrees(policy, PROMPT, reply), "the only one: it is waited for"
        assert engine.downtime.seconds > before, "and that is no episode's time"
        monkeypatch.setattr(engines, "STARTS", 2)
        await broken(engine.servers[0], after=3)
        with pytest.raises(EngineFailed, match="No server of vLLM is left") as told:
            await engine.generate(PROMPT, Sampling(24))
        assert "air train --resume" in told.value.fix

    monkeypatch.setattr(engines, "WATCH_S", 0.1)
    served(tmp_path, work)


def test_H2_a_server_that_hangs_is_left_and_its_replies_go_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("WATCH_S", 0.2), ("IDLE_S", 3.0), ("ANSWER_S", 3.0), ("STARTS", 1)):
        monkeypatch.setattr(engines, name, seconds)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        victim = engine.servers[0]
        assert isinstance(victim, StandInServer) and victim.process
        begun = [asyncio.Event() for _ in range(4)]

        def ask(i: int) -> Any:
            said = begun[i - 1]
            return engine.generate([i], Sampling(240, seed=i), order=f"{i}", on_tokens=lambda _: said.set())

        asked = [asyncio.ensure_future(ask(i)) for i in range(1, 5)]
        for each in begun:
            await each.wait()
        os.kill(victim.process.pid, signal.SIGSTOP)
        replies = await asyncio.gather(*asked)
        assert victim.lost
        assert all(len(r.token_ids) == 240 and agrees(policy, [i], r) for i, r in enumerate(replies, 1))

    served(tmp_path, work, count=2)


@pytest.mark.parametrize("shared", [True, False])
def test_H2_a_server_that_hangs_while_only_other_ranks_ask_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    for name, seconds in (("WATCH_S", 0.2), ("IDLE_S", 1.0), ("ANSWER_S", 1.0)):
        monkeypatch.setattr(engines, name, seconds)
    monkeypatch.setattr(shared_engines, "ANSWER_S", 1.0)

    async def work() -> None:
        policy, server, store = make_policy(), stand_in(), AdapterStore(tmp_path, "tiny")
        made = (policy, [server], store, 256, 8)
        engine = SharedEngine(Ranks(), *made) if shared else VllmEngine(*made)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            await engine.start()
            assert server.process
            os.kill(server.process.pid, signal.SIGSTOP)
            await asyncio.sleep(4.0)
            while shared and (server.starts == 1 or server.lost):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert server.starts == (2 if shared else 1), "alone, nobody has asked it for anything"
            if shared:
                assert agrees(policy, PROMPT, await engine.generate(PROMPT, Sampling(8)))

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize("when", ["in an update", "while it is away"])
def test_H2_a_server_that_hangs_while_nothing_is_sampled_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """An update waits for it, and so does whoever asks next where it is the only one. What a server that was just
    started may take, and what an answer may, is far longer than what is waited for here."""
    for name, seconds in (("WATCH_S", 0.2), ("IDLE_S", 1.5), ("ANSWER_S", 2.0)):
        monkeypatch.setattr(engines, name, seconds)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        (server,) = engine.servers
        assert isinstance(server, StandInServer) and server.process
        os.kill(server.process.pid, signal.SIGSTOP)
        if when == "while it is away":
            server.lost = "its connection broke"
        change(policy, 1)
        await engine.publish(1)
        assert server.starts > 1 and not server.lost
        reply = await engine.generate(PROMPT, Sampling(8))
        assert reply.version == 1 and agrees(policy, PROMPT, reply)

    served(tmp_path, work, within_s=120)


def test_a_version_that_cannot_be_loaded_takes_its_server_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        async def nobody_looks(server: VllmServer) -> None:
            """Nothing is started again until both have refused: one that was, and refused again, would be a third."""

        with monkeypatch.context() as held:
            held.setattr(engine, "_check", nobody_looks)
            change(policy, 1)
            await broken(engine.servers[0], refuse=True)
            await engine.publish(1)
            assert "could not load" in engine.servers[0].lost
            assert agrees(policy, PROMPT, await engine.generate(PROMPT, Sampling(8)))
            change(policy, 2)
            await broken(engine.servers[1], refuse=True)
            published = asyncio.ensure_future(engine.publish(2))
            while not engine.servers[1].lost:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await published
        assert max(server.starts for server in engine.servers) == 2, "all refused: one was started anew"
        assert agrees(policy, PROMPT, await engine.generate(PROMPT, Sampling(8)))

    monkeypatch.setattr(engines, "WATCH_S", 0.1)
    served(tmp_path, work, count=2)


def test_a_server_that_forgot_its_adapter_gets_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that somebody else has started anew, at the same address."""
    monkeypatch.setattr(engines, "WATCH_S", 0.1)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        await broken(engine.servers[0], forget=True)
        replies = await asyncio.gather(*(engine.generate([i + 1], Sampling(8), order=f"{i}") for i in range(6)))
        assert all(agrees(policy, [i + 1], r) for i, r in enumerate(replies))
        while engine.servers[0].lost:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    served(tmp_path, work, count=2)


def test_a_server_whose_answer_to_a_load_was_lost_is_not_refused(tmp_path: Path) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        (server,) = engine.servers
        server._adapters.clear()
        await engine.publish(0)
        assert not server.lost and server.starts == 1
        assert agrees(policy, PROMPT, await engine.generate(PROMPT, Sampling(8)))

    served(tmp_path, work)


def test_turns_of_a_conversation_stay_at_one_server(tmp_path: Path) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        chosen = {await engine._choose(f"7-0-3-{turn:03d}") for turn in range(5)}
        engine.servers[0].busy, engine.servers[1].busy = 3, 0
        again = await engine._choose("7-0-3-005")
        engine.servers[0].busy = 0
        assert {again} == chosen

    served(tmp_path, work, count=2)


def test_answers_that_are_none_end_the_run_and_not_only_a_server(tmp_path: Path) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        await broken(engine.servers[0], mute=True)
        with pytest.raises(EngineFailed, match="not what it was asked"):
            await engine.generate(PROMPT, Sampling(8))

    served(tmp_path, work)


def test_H5_a_server_with_other_weights_is_not_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        change(policy, 1)
        await engine.publish(1)
        await broken(engine.servers[0], stale=True)
        change(policy, 2, size=0.5)
        engine._name = engine._store.put(policy, 2)
        monkeypatch.setattr(engines, "WATCH_S", 0.05)
        with pytest.raises(AirError, match="does not compute what the trainer does"):
            await engine._admit(engine.servers[0])

    served(tmp_path, work)


def test_a_server_that_lives_is_not_ended_because_the_way_to_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_S", 0.05)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        (server,) = engine.servers
        load, failures = server.load, ["the adapter could not be had"] * 3

        async def failing(name: str, path: Path) -> None:
            if failures:
                raise ServerLost(failures.pop())
            await load(name, path)

        monkeypatch.setattr(server, "load", failing)
        server.lost = "its connection broke"
        reply = await engine.generate(PROMPT, Sampling(8))
        assert not failures and server.starts == 1 and agrees(policy, PROMPT, reply)

    served(tmp_path, work)


def test_a_server_that_returns_before_an_update_is_published_is_not_ended_for_what_it_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_S", 0.01)
    probes = list[float]()

    async def work(engine: VllmEngine, policy: Policy) -> None:
        (server,) = engine.servers
        measure = engine._logprob_distance

        async def counted(server: VllmServer, name: str) -> float:
            probes.append(await measure(server, name))
            return probes[-1]

        monkeypatch.setattr(engine, "_logprob_distance", counted)
        change(policy, 1, size=0.5)
        policy.version = 1  # as an update makes it: what follows may take minutes
        server.lost = "its connection broke"
        while len(probes) < 2 * engines.PROBES:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert min(probes) > engines.tolerance(policy) and server.starts == 1 and server.lost
        await engine.publish(1)
        reply = await engine.generate(PROMPT, Sampling(8))
        assert server.starts == 1 and reply.version == 1 and agrees(policy, PROMPT, reply)

    served(tmp_path, work)


def test_what_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Without the keys that it may have said among them, there and in its log."""
    words = "import os; print(os.environ); raise SystemExit('No module named vllm.entrypoints')"
    command = [sys.executable, "-c", words]
    env = {"VLLM_API_KEY": "planted-here"}

    async def work() -> None:
        lost = VllmServer("http://127.0.0.1:9", command=command, env=env, log=tmp_path / "log")
        lost.start()
        try:
            await lost.ready()
        finally:
            await lost.close()

    with pytest.raises(AirError, match="did not start") as told:
        asyncio.run(work())
    logged = (tmp_path / "log").read_text()
    assert "VLLM_API_KEY': '…'" in logged and "planted" not in logged and "planted" not in str(told.value)


@pytest.mark.parametrize("children", [False, True], ids=["it is killed", "after its children, as by Ray"])
def test_a_server_goes_with_whoever_started_it_however_that_ends(tmp_path: Path, children: bool) -> None:
    pids = tmp_path / "pids"
    inner = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    outer = (
        "import subprocess, sys, time; "
        f"guarded = [sys.executable, {str(PROCESS_GUARD)!r}, sys.executable, '-c', {inner!r}]; "
        "subprocess.Popen(guarded, stdin=subprocess.PIPE); "
        "time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", outer])
    while not pids.exists() or not pids.read_text().strip():
        time.sleep(0.05)
    pid, below = int(pids.read_text()), child_of(starter.pid)
    if children:
        os.kill(below, signal.SIGKILL)
    starter.kill()
    starter.wait()
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the server is still there")


def test_no_proxy_of_the_environment_is_asked_for_servers_that_are_near() -> None:
    near = [VllmServer(f"http://{host}:8000") for host in ("127.0.0.1", "localhost", "[::1]")]
    near += [VllmServer("http://10.0.0.7:8000", command=["vllm"]), NodeServer("http://10.0.0.7:8000")]
    assert not any(server.client.trust_env for server in near)
    assert VllmServer("http://vllm.example:8000").client.trust_env, "who is elsewhere may be behind one"
