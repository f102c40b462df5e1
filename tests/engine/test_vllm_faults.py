"""A way to servers of vLLM that delays, cuts, half-closes and garbles: every token that the engine returns is the one
of an unbroken reply, or it is said that there is none; and nobody waits without a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.engine_conformance import AGREES, PROMPT, agrees, change
from support.fault_proxy import Fault, FaultProxy
from support.ports import free_port
from support.vllm_served import make_policy
from support.vllm_standin import StandInServer, stand_in

from airloop.engine.base import EngineFailed, Generation, Sampling
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm import server as servers
from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.reply import Reply
from airloop.engine.vllm.server import ServerLost
from airloop.policy import Policy

LENGTH = 8
# For what is sampled behind a fault as well.
SAMPLING = Sampling(LENGTH, seed=5)


@dataclass(eq=False)
class Behind(StandInServer):
    """Reached through a proxy: `port` is its own."""

    port: int = 0

    def start(self) -> None:
        way, self.url = self.url, f"http://127.0.0.1:{self.port}"
        super().start()
        self.url = way


@dataclass
class World:
    engine: VllmEngine
    policy: Policy
    ways: list[FaultProxy]

    async def reply(self, **more: Any) -> tuple[Generation, list[int]]:
        """And what was told of it as it came."""
        heard: list[int] = []
        asked = self.engine.generate(PROMPT, replace(SAMPLING, **more), on_tokens=heard.extend)
        return await asyncio.wait_for(asked, 20), heard


SOON_S = 3.0


def through(folder: Path, work: Callable[[World], Awaitable[None]], count: int = 1, harmed: int = 1) -> None:
    """`harmed` of the servers are behind a proxy."""

    async def whole() -> None:
        policy = make_policy()
        async with contextlib.AsyncExitStack() as stack:
            ways = [FaultProxy(free_port()) for _ in range(harmed)]
            for way in ways:
                await way.start()
                stack.push_async_callback(way.close)
            made = [Behind(f"http://127.0.0.1:{w.port}", "key", command=["stand-in"], port=w.behind) for w in ways]
            others = [stand_in() for _ in range(count - harmed)]
            engine = VllmEngine(policy, [*made, *others], AdapterStore(folder, "tiny"), 256, 8)
            stack.push_async_callback(engine.close)
            await engine.start()
            servers.SILENT_S = SOON_S  # not before: on a busy machine a server that begins may take longer
            await work(World(engine, policy, ways))

    asyncio.run(asyncio.wait_for(whole(), 600))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for, in a tenth of what it takes at most here; `through` sets SILENT_S once servers have begun."""
    monkeypatch.setattr(servers, "SILENT_S", servers.SILENT_S)
    monkeypatch.setattr(engines, "WATCH_S", 0.1)


def token_changed(text: str) -> str:
    """Where it stands among the ids only."""
    head, _, rest = text.partition('"token_ids": [')
    digits, _, tail = rest.partition("]")
    return f'{head}"token_ids": [{int(digits) ^ 1}]{tail}'


def logprob_changed(text: str) -> str:
    head, _, rest = text.partition('"logprob": -')
    return f'{head}"logprob": -1{rest}'


def kinds(dice: random.Random) -> Fault:
    at = dice.randrange(LENGTH)
    made = [
        Fault("delay", at, seconds=0.05),
        Fault("cut", at, byte=dice.randrange(1, 400)),
        Fault("half", at),
        Fault("change", at, change=token_changed),
        Fault("change", at, change=logprob_changed),
        Fault("lose", at),
        Fault("twice", at),
        Fault("request"),
    ]
    return dice.choice([*made, *(Fault("flip", at, dice.randrange(400), dice.randrange(8)) for _ in range(8))])


async def check(world: World, fault: Fault, whole: Generation) -> None:
    async with world.ways[0].harming(fault):
        began = time.monotonic()
        found, heard = await world.reply()
    assert world.ways[0].met == 1, fault
    assert (found.token_ids, found.stop) == (whole.token_ids, whole.stop), fault
    assert found.logprobs == pytest.approx(whole.logprobs, abs=AGREES), fault
    assert heard == list(whole.token_ids), fault
    assert time.monotonic() - began < 15, fault


@pytest.mark.long
@pytest.mark.parametrize("faults", [24, pytest.param(1000, marks=pytest.mark.soak)])
def test_H1_a_harmed_reply_is_the_unbroken_one_token_by_token(tmp_path: Path, faults: int) -> None:
    async def work(world: World) -> None:
        dice = random.Random(faults)
        whole, _ = await world.reply()
        assert agrees(world.policy, PROMPT, whole)
        for at in (0, LENGTH - 1):  # the edges, of what changes it without a trace in its form
            for changed in (token_changed, logprob_changed):
                await check(world, Fault("change", at, change=changed), whole)
            for kind in ("lose", "twice"):
                await check(world, Fault(kind, at), whole)
        for _ in range(faults):
            await check(world, kinds(dice), whole)
        assert not world.engine.servers[0].lost and world.engine.servers[0].starts == 1, "it lives, and is not left"

    through(tmp_path, work)


@pytest.mark.slow
def test_a_way_that_harms_every_reply_is_left_for_one_that_does_not(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        bad, good = world.engine.servers
        async with world.ways[0].harming(Fault("flip", byte=3, times=1000)):
            asked = [world.engine.generate([i], replace(SAMPLING, seed=i), order=f"{i}-0") for i in range(1, 7)]
            replies = await asyncio.wait_for(asyncio.gather(*asked), 20)
        assert all(agrees(world.policy, [i], reply) for i, reply in enumerate(replies, 1))
        assert 0 < world.ways[0].met <= 12, "each has tried it once at most, and then asked whether it lives"
        assert not good.lost
        while bad.busy or good.busy:  # noqa: ASYNC110 - nothing is left open, once a trial of the bad one has ended
            await asyncio.sleep(0.01)

    through(tmp_path, work, count=2)


@pytest.mark.long
def test_H2_nobody_waits_for_ever_for_what_does_not_come(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        whole, _ = await world.reply()
        for kind, at in (("stall", 0), ("stall", LENGTH - 1), ("drip", 3)):
            await check(world, Fault(kind, at), whole)
        async with world.ways[0].harming(Fault("stall", -1)):
            assert (await world.reply())[0].token_ids == whole.token_ids, "not even its head came"
            assert world.ways[0].met == 1

    through(tmp_path, work)


@pytest.mark.slow
def test_where_every_reply_is_harmed_the_run_is_told_and_does_not_try_for_ever(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        for changed in (token_changed, logprob_changed, lambda text: text.replace("choices", "choicez")):
            async with world.ways[0].harming(Fault("change", change=changed, times=1000)):
                with pytest.raises(EngineFailed, match="vLLM answers, and not what it was asked"):
                    await world.reply()
                assert world.ways[0].met <= 2 * (engines.FAILURES + 2), "and its probes as often"
        assert not world.engine.servers[0].lost
        async with world.ways[0].harming(Fault("flip", byte=3, times=1000)):  # not even a probe's answer comes
            with pytest.raises(EngineFailed, match=r"No server of vLLM is left\.\n.*a piece of its reply was lost"):
                await world.reply()

    through(tmp_path, work)


@pytest.mark.slow
def test_what_is_garbled_while_a_server_is_looked_at_does_not_admit_it(tmp_path: Path) -> None:
    """A log-prob that is altered the same in both places: only who computes it anew can tell."""

    def both(text: str) -> str:
        return text.replace('"logprob": -', '"logprob": -1')

    async def work(world: World) -> None:
        async with world.ways[0].harming(Fault("change", 4, change=both, times=1000)):
            change(world.policy, 1)
            await world.engine.publish(1)
            with pytest.raises(engines.AirError, match="does not compute what the trainer does"):
                await world.engine._admit(world.engine.servers[0])
            found, _ = await world.reply()
        assert not agrees(world.policy, PROMPT, found), "every update's learner sees it: F2 tells of such a gap"

    through(tmp_path, work)


def piece(token: int = 5, logprob: float = -0.5, **more: Any) -> dict[str, Any]:
    said = {"token": f"token_id:{token}", "logprob": logprob}
    choice = {"token_ids": [token], "logprobs": {"content": [{**said, "top_logprobs": [said]}]}}
    return {"choices": [{**choice, **more}]}


WRONG = [
    5,
    [],
    {},
    {"choices": 7},
    {"choices": [{}]},
    {"choices": [{"token_ids": 3}]},
    {"choices": [{"token_ids": [3]}]},
    {"choices": [{"token_ids": [3], "logprobs": {"content": [{}]}}]},
    {"choices": [{"token_ids": ["3"], "logprobs": {"content": [{"logprob": -1.0}]}}]},
    {"choices": [{"token_ids": [3], "logprobs": {"content": [{"logprob": None}]}}]},
    {"choices": [{"token_ids": [3], "logprobs": {"content": [{"token": "token_id:4", "logprob": -1.0}]}}]},
    piece(logprob=float("nan")),
    piece(logprob=float("-inf")),
    piece(logprob=2.0),
    piece(token=-1),
    {**piece(), "usage": {"completion_tokens": 1}},
    {**piece(), "usage": {"completion_tokens": 3}},
    {**piece(), "usage": 8},
    {"choices": [*piece(9)["choices"], *piece(5)["choices"]]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_of_a_piece_that_cannot_be_right_nothing_is_taken(wrong: Any) -> None:
    told: list[int] = []
    reply = Reply([1, 2], Sampling(4, stop_ids=(9,)), 4, "a", told.extend)
    reply.request()
    reply.take({**piece(6), "usage": {"completion_tokens": 1}})
    with pytest.raises(ServerLost):
        reply.take(wrong)
    assert reply.ids == told == [6] and reply.logprobs == [-0.5] and reply.request()["token_ids"] == [1, 2, 6]


def test_nothing_is_taken_behind_the_end_of_a_reply() -> None:
    stopped, full = Reply([1], Sampling(4, stop_ids=(9,)), 4, "a", None), Reply([1], Sampling(4), 1, "a", None)
    for reply, last in ((stopped, 9), (full, 5)):
        reply.request()
        reply.take(piece(last))
        assert reply.ended
        with pytest.raises(ServerLost, match="behind the end"):
            reply.take(piece(last))
        reply.take({"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}})
        assert reply.ids == [last] and reply.cached == 1


def test_tokens_that_no_count_comes_with_are_taken_as_they_are() -> None:
    """Servers that tell of it at the end only, and those whose log-probs have no names."""
    reply = Reply([1], Sampling(4), 4, "a", None)
    reply.request()
    reply.take({"choices": [{"token_ids": [3, 4], "logprobs": {"content": [{"logprob": -1.0}, {"logprob": 0.0}]}}]})
    reply.take(piece(5))
    assert reply.ids == [3, 4, 5] and reply.logprobs == [-1.0, 0.0, -0.5]
    reply.request()
    reply.take({**piece(6), "usage": {"completion_tokens": 1, "prompt_tokens_details": None}})
    assert reply.ended


def test_H2_an_answer_that_never_ends_is_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes trickle in for as long as anybody reads: each begins a client's own deadline anew."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def work() -> None:
        listening = await asyncio.start_server(trickle, "127.0.0.1", 0)
        async with listening:
            server = servers.VllmServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            assert not await server.is_healthy(0.2)
            with pytest.raises(ServerLost, match="nothing of what it was asked came"):
                await server._post("/v1/load_lora_adapter", {})
            with pytest.raises(engines.AirError, match="is no vLLM"):
                await server._check_routes()
            await server.close()

    monkeypatch.setattr(servers, "SILENT_S", SOON_S)
    monkeypatch.setattr(servers, "ANSWER_S", 0.3)
    asyncio.run(asyncio.wait_for(work(), 120))
