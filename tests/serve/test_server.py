"""The server of the endpoint: it ends when it is told, and waits for nothing that is not there."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest
import uvicorn.server

from airloop.serve import server
from airloop.serve.server import serving

Sleeps = list[float]


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """How long whoever sleeps has slept, one after the other."""
    found: Sleeps = []
    sleep = asyncio.sleep

    async def noted(delay: float, result: Any = None) -> Any:
        found.append(delay)
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return found


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.mark.parametrize("connections", [0, 3])
def test_an_idle_server_ends_at_once(connections: int, sleeps: Sleeps) -> None:
    async def work() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            async with serving(hello) as url:
                for answer in await asyncio.gather(*(client.get(url) for _ in range(connections))):
                    assert answer.text == "hi"
                sleeps.clear()
            with pytest.raises(httpx.TransportError):
                await client.get(url)

    asyncio.run(work())
    assert sum(sleeps) == 0


def test_an_answer_under_way_is_waited_for() -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await going_on.wait()
        await hello(scope, receive, send)

    async def work() -> str:
        async with httpx.AsyncClient(trust_env=False) as client:
            async with serving(late) as url:
                answer = asyncio.ensure_future(client.get(url))
                await begun.wait()
                asyncio.get_running_loop().call_later(0.05, going_on.set)
            return (await answer).text

    begun, going_on = asyncio.Event(), asyncio.Event()
    assert asyncio.run(work()) == "hi"


def test_the_date_in_the_head_of_answers_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(uvicorn.server, "formatdate", lambda *time, **more: f"{next(numbers)}")
    monkeypatch.setattr(server, "DATE_S", 0.001)

    async def work() -> None:
        async with serving(hello) as url, httpx.AsyncClient(trust_env=False) as client:
            first = (await client.get(url)).headers["date"]
            while (await client.get(url)).headers["date"] == first:
                pass

    asyncio.run(asyncio.wait_for(work(), 30))
