"""All the weights for servers of vLLM, over real sockets and processes: the order of an update, what one that fails
leaves, what is served after it. The servers are stand-ins that go wrong as vLLM does (support/vllm_full_standin.py);
vLLM itself is in tests/interop/test_vllm.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine_conformance import CHECKS, PROMPT, agrees, change
from support.vllm_full_standin import full_stand_in
from support.vllm_served import broken

from airloop.engine.base import Sampling
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm.full import STEPS, FullEngine, FullStore
from airloop.engine.vllm.plugin.weights import FILE
from airloop.engine.vllm.server import ServerLost
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

Check = Callable[[Any, Policy], Awaitable[None]]
Work = Callable[[FullEngine, Policy], Awaitable[None]]
pytestmark = pytest.mark.slow
LONG = [*PROMPT, *PROMPT, *PROMPT]  # several pages, which a cache keeps


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "WATCH_S", 0.1)


def served(folder: Path, work: Work, count: int = 1, context: int = 96) -> None:
    async def whole() -> None:
        model = tiny_model("llama").model
        policy = Policy(model.requires_grad_(True), logits_head(model), None)
        servers = [full_stand_in() for _ in range(count)]
        engine = FullEngine(policy, servers, FullStore(folder / "weights", ""), context, 8)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            await engine.start()
            await work(engine, policy)

    asyncio.run(asyncio.wait_for(whole(), 120))


async def steps(engine: FullEngine) -> list[str]:
    async with httpx.AsyncClient() as client:
        return list((await client.get(f"{engine.servers[0].url}/steps")).json())


async def is_served(engine: FullEngine, policy: Policy, version: int) -> bool:
    reply = await engine.generate(LONG, Sampling(12))
    return reply.version == version and agrees(policy, LONG, reply)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_does_what_every_engine_must(tmp_path: Path, check: Check) -> None:
    served(tmp_path, check, count=2)
    assert not list((tmp_path / "weights").iterdir()), "weights go with the engine"


def test_an_update_is_all_steps_in_their_order(tmp_path: Path) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        assert await steps(engine) == list(STEPS), "the policy may be another than the model that it was started with"
        change(policy, 1, size=0.02)
        await engine.publish(1)
        assert await steps(engine) == [*STEPS, *STEPS]
        await engine.publish(1)
        assert await steps(engine) == [*STEPS, *STEPS], "the same weights again"

    served(tmp_path, work)


def test_H4_an_update_that_fails_half_way_is_made_again_before_anything_is_asked(tmp_path: Path) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        (server,) = engine.servers
        await broken(server, half=1)
        change(policy, 1, size=0.02)
        await engine.publish(1)
        pause, start, update, finish, *rest = STEPS
        again = [start, update, finish, *rest]
        assert (await steps(engine))[len(STEPS) :] == [pause, start, update, finish, *again]
        assert await is_served(engine, policy, 1) and server.starts == 1

    served(tmp_path, work)


def test_H4_an_update_that_cannot_be_finished_is_made_again(tmp_path: Path) -> None:
    """The server believes it to be under way: it would not begin another."""

    async def work(engine: FullEngine, policy: Policy) -> None:
        (server,) = engine.servers
        await broken(server, finish=1)
        change(policy, 1, size=0.02)
        await engine.publish(1)
        assert await is_served(engine, policy, 1) and server.starts == 1

    served(tmp_path, work)


def test_H4_a_server_that_cannot_be_repaired_is_started_anew(tmp_path: Path) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        (server,) = engine.servers
        await broken(server, half=9)
        change(policy, 1, size=0.02)
        await engine.publish(1)
        assert server.starts == 2 and await is_served(engine, policy, 1)

    served(tmp_path, work)


@pytest.mark.parametrize("how", ["behind", "label"])
def test_H5_a_server_that_stays_one_version_behind_serves_nothing(tmp_path: Path, how: str) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        victim, other = engine.servers
        await broken(victim, **{how: True})
        change(policy, 1, size=0.05)
        await engine.publish(1)
        told = {"behind": "not the trainer's, with air-", "label": "and says that it has air-"}
        assert told[how] in victim.lost and not other.lost
        replies = [await engine.generate(LONG, Sampling(8, seed=i), order=f"{i}") for i in range(4)]
        assert all(agrees(policy, LONG, reply) for reply in replies)
        while victim.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert victim.starts == 2, "it was started anew, and has them now"

    served(tmp_path, work, count=2)


def test_H6_what_a_cache_kept_of_the_weights_before_is_not_found_under_the_new_label(tmp_path: Path) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        (server,) = engine.servers
        assert await is_served(engine, policy, 0)
        before = engine._name
        await broken(server, cache=True)
        change(policy, 1, size=0.05)
        await engine.publish(1)
        assert await is_served(engine, policy, 1)
        name, engine._name = engine._name, before
        stale = await engine.generate(LONG, Sampling(12))
        assert not agrees(policy, LONG, stale), "under the old salt it is: so the salt is what keeps it away"
        engine._name = name

    served(tmp_path, work)


def test_a_file_that_is_not_whole_is_refused_before_any_weight_is_touched(tmp_path: Path) -> None:
    async def work(engine: FullEngine, policy: Policy) -> None:
        (server,) = engine.servers
        path = engine._store.root / engine._name / FILE
        (tmp_path / "cut").mkdir()
        (tmp_path / "cut" / FILE).write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ServerLost, match="the file of weights has the digest"):
            await server._update(engine._name, tmp_path / "cut")  # type: ignore[attr-defined]
        assert await is_served(engine, policy, 0) and server.starts == 1

    served(tmp_path, work)
