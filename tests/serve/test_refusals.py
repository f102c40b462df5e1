"""Requests that the endpoint has no room for: it is known whose they were, and whether they were answered after all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support.endpoint_world import Recorded, episode_of, user

from airloop.serve import connections, request_limits
from airloop.serve.app import RETRIES, Endpoint
from airloop.serve.refusals import UNREAD, unread
from airloop.serve.server import serving

MOST = 8  # connections; two more may ask, to be refused
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Held(Recorded):
    """Answers nobody until it is told to; `full` as soon as so many wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.free, self.waiting_now = asyncio.Event(), asyncio.Event(), 0

    async def generate(self, *given: Any, **more: Any) -> Any:
        self.waiting_now += 1
        if self.waiting_now == MOST:
            self.full.set()
        await self.free.wait()
        return await super().generate(*given, **more)


class World:
    """An endpoint with two episodes, `one` and `two`, all of whose connections are in use."""

    def __init__(self) -> None:
        self.endpoint, self.engine, self.port = Endpoint("tiny"), Held(), 0
        self.one, self.two = episode_of(self.engine), episode_of(self.engine)
        self.keys = {id: self.endpoint.open(id, getattr(self, id)) for id in ("one", "two")}
        self.told = asyncio.Event()
        self.lines: list[Line] = []

    @contextlib.asynccontextmanager
    async def crowded(self) -> AsyncIterator[None]:
        async with serving(self.endpoint.app(), crowded=self.tell) as url:
            self.port = int(url.rpartition(":")[2])
            self.lines = [await self.send("two", f"part {i}") for i in range(MOST)]
            await self.engine.full.wait()
            yield
            self.engine.free.set()
            for _, writer in self.lines:
                writer.close()

    def tell(self, owner: str) -> None:
        self.endpoint.crowded(owner)
        self.told.set()

    async def send(self, id: str, said: str, line: Line | None = None, **headers: str) -> Line:
        reader, writer = line or await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"messages": [user(said)]}).encode()
        fields = {"Host": "a", "Authorization": f"Bearer {self.keys[id]}", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"POST /e/{id}/v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        return reader, writer

    async def ask(self, id: str, said: str, line: Line | None = None, **headers: str) -> tuple[int, str]:
        """The status and the head of the answer to a request on a connection that is closed behind it."""
        reader, writer = await self.send(id, said, line, Connection="close", **headers)
        answer = (await reader.read()).decode()
        writer.close()
        return int(answer.split()[1]), answer.partition("\r\n\r\n")[0].lower()


def in_world(work: Callable[[World], Awaitable[None]]) -> World:
    async def run() -> World:
        world = World()
        async with asyncio.timeout(120), world.crowded():
            await work(world)
        return world

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda limit: MOST)


def test_it_is_known_whose_request_was_refused_until_it_is_answered() -> None:
    async def work(world: World) -> None:
        status, head = await world.ask("one", "x")
        assert status == 503 and "retry-after: 1" in head and "connection: close" in head
        assert len(world.one.refusals.unanswered) == 1 and not world.two.refusals.unanswered
        assert world.one.requests == 0, "it is no sample"
        world.engine.free.set()
        for reader, _ in world.lines:
            await reader.readuntil(b"\r\n\r\n")
        assert (await world.ask("one", "another"))[0] == 200 and world.one.refusals.unanswered
        assert (await world.ask("one", "x"))[0] == 200 and not world.one.refusals.unanswered

    world = in_world(work)
    assert world.two.requests == MOST and not world.two.refusals.unanswered


def test_by_the_time_that_its_request_is_read_there_may_be_room() -> None:
    async def work(world: World) -> None:
        silent = await asyncio.open_connection("127.0.0.1", world.port)
        assert (await world.ask("two", "x"))[0] == 503, "the silent one came before"
        world.engine.free.set()
        for reader, _ in world.lines:
            await reader.readuntil(b"\r\n\r\n")
        assert (await world.ask("one", "x", silent))[0] == 200

    assert not in_world(work).one.refusals.unanswered


def test_a_key_of_anothers_makes_nobody_the_owner() -> None:
    async def work(world: World) -> None:
        world.keys["one"] = world.keys["two"]
        assert (await world.ask("one", "x"))[0] == 401

    world = in_world(work)
    assert not world.one.refusals.unanswered and not world.two.refusals.unanswered


def test_where_even_those_are_too_many_it_may_have_been_anybodys() -> None:
    async def work(world: World) -> None:
        half = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(2)]
        for _, writer in half:  # a head and half a body: they ask for something
            writer.write(
                f"POST /e/one/v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {world.keys['one']}"
                "\r\nContent-Length: 9\r\n\r\n{".encode()
            )
        for _ in half:
            await reading.acquire()
        world.told.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        await world.told.wait()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        assert world.one.refusals.crowded == world.two.refusals.crowded == 1
        for _, each in [*half, (reader, writer)]:
            each.close()

    reading = asyncio.Semaphore(0)
    read = request_limits.RequestBodies.read

    async def noted(bodies: Any, request: Any) -> bytes:
        if request.path_params["episode"] == "one":
            reading.release()
        return await read(bodies, request)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_limits.RequestBodies, "read", noted)
        world = in_world(work)
    assert not world.one.refusals.unanswered


def test_an_idle_connection_that_is_closed_for_another_is_its_owners() -> None:
    async def work(world: World) -> None:
        world.engine.free.set()
        for reader, _ in world.lines:
            await reader.readuntil(b"\r\n\r\n")
        assert (await world.ask("one", "x"))[0] == 200, "for it one of the others was closed"

    world = in_world(work)
    assert (world.one.refusals.crowded, world.two.refusals.crowded) == (0, 1)


@pytest.mark.parametrize(("said", "left"), [("x", 0), ("another", 1)])
def test_what_was_refused_unread_is_answered_by_a_request_as_long(
    said: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its client says of it: few say that they ask again."""
    monkeypatch.setattr(connections, "most_connections", lambda limit: 2 * MOST)

    async def work(world: World) -> None:
        world.engine.free.set()
        with monkeypatch.context() as full:
            full.setattr(request_limits, "MOST_HELD", 5)
            status, head = await world.ask("one", "x")
        assert status == 503 and "retry-after: 1" in head and len(world.one.refusals.unanswered) == 1
        assert (await world.ask("one", said))[0] == 200

    assert len(in_world(work).one.refusals.unanswered) == left


@pytest.mark.parametrize(("headers", "left"), [({RETRIES: "1"}, set()), ({}, {UNREAD})])
def test_what_came_in_chunks_and_was_refused_unread_is_answered_by_what_says_that_it_is_sent_again(
    headers: dict[str, str], left: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda limit: 2 * MOST)

    async def work(world: World) -> None:
        world.engine.free.set()
        world.one.refusals.unanswered.add(unread(None))
        assert (await world.ask("one", "x", **headers))[0] == 200

    assert in_world(work).one.refusals.unanswered == left


def test_an_answer_that_says_what_is_wrong_is_one() -> None:
    async def work(world: World) -> None:
        assert (await world.ask("one", "x"))[0] == 503
        world.engine.free.set()
        for reader, _ in world.lines:
            await reader.readuntil(b"\r\n\r\n")
        world.one.most_requests = 0
        assert (await world.ask("one", "x"))[0] == 400

    assert not in_world(work).one.refusals.unanswered
