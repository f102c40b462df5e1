"""What the endpoint saves, and that nothing is lost by it: one packet an answer, no task that only listens for the end
of a connection, a collector that seldom looks."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from typing import Any

import httpx
import pytest
from support.endpoint_world import CHAT, Recorded, episode_of, user

from airloop.open_files import allow_files
from airloop.serve import connections, request_limits
from airloop.serve.app import Endpoint
from airloop.serve.chat_form import form_of
from airloop.serve.connections import BufferedTransport
from airloop.serve.server import YOUNG, rare_collections, serving

CHAT_PATH = "/e/one/v1/chat/completions"


class Wire:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")

    def get_write_buffer_size(self) -> int:
        return 5

    def is_closing(self) -> bool:
        return "close" in self.told


def test_what_is_written_together_is_sent_together() -> None:
    async def write() -> list[list[Any]]:
        seen, wire = [], Wire()
        gathering = BufferedTransport(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
        for data in (b"head ", b"", b"body"):
            gathering.write(data)
        assert gathering.get_write_buffer_size() == 14 and not wire.told
        await asyncio.sleep(0)
        seen.append(list(wire.told))
        gathering.write(b"more")
        gathering.close()
        assert gathering.is_closing()
        seen.append(list(wire.told))
        gathering.write(b"lost")
        gathering.abort()
        await asyncio.sleep(0)
        return [*seen, wire.told]

    sent, closed, aborted = asyncio.run(write())
    assert sent == [b"head body"] and closed == [b"head body", b"more", "close"]
    assert aborted == [b"head body", b"more", "close", "abort"]


async def posted(port: int, key: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


def test_an_answer_comes_in_one_piece() -> None:
    async def ask() -> bytes:
        endpoint = Endpoint("tiny")
        key = endpoint.open("one", episode_of(Recorded()))
        async with serving(endpoint.app()) as url:
            reader, writer = await posted(int(url.rpartition(":")[2]), key, {"messages": [user("hi")]})
            first = await asyncio.wait_for(reader.read(1 << 16), 30)
            writer.close()
            return first

    head, _, body = asyncio.run(ask()).partition(b"\r\n\r\n")
    assert b" 200 " in head and json.loads(body)["choices"][0]["message"]["content"].startswith("yes")


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_is_given_up_on_and_whose_line_stays_is_not(stream: bool) -> None:
    class Slow(Recorded):
        cancelled = 0

        async def generate(self, *given: Any, **more: Any) -> Any:
            began.set()
            try:
                await asyncio.wait_for(end.wait(), 60)
            except asyncio.CancelledError:
                self.cancelled += 1
                given_up.set()
                raise
            return await super().generate(*given, **more)

    async def ask() -> tuple[int, int, bytes]:
        endpoint, engine = Endpoint("tiny"), Slow()
        episode = episode_of(engine)
        key = endpoint.open("one", episode)
        async with serving(endpoint.app()) as url:
            port, body = int(url.rpartition(":")[2]), {"messages": [user("hi")], "stream": stream}
            _, gone = await posted(port, key, body)
            await began.wait()
            began.clear()
            stays, writer = await posted(port, key, body)
            await began.wait()
            gone.close()
            await given_up.wait()
            end.set()
            said = await asyncio.wait_for(stays.read(1 << 16), 30)
            writer.close()
        return engine.cancelled, episode.abandoned, said

    began, given_up, end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    cancelled, abandoned, said = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (cancelled, abandoned) == (1, 1) and b" 200 " in said


def test_a_line_that_rests_between_requests_is_kept_and_half_a_head_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[connections.LimitedConnection] = []
    came: asyncio.Queue[bytes] = asyncio.Queue()
    received = connections.LimitedConnection.data_received

    def receive(connection: connections.LimitedConnection, data: bytes) -> None:
        here[:] = [connection]
        received(connection, data)
        came.put_nowait(data)

    def look() -> None:
        """As when its patience is over."""
        here[0]._check_at = 0.0
        here[0]._check()

    monkeypatch.setattr(connections.LimitedConnection, "data_received", receive)

    async def work() -> None:
        endpoint = Endpoint("tiny")
        key = endpoint.open("one", episode_of(Recorded()))
        body = json.dumps({"messages": [user("a")]})
        lines = [
            f"POST {CHAT_PATH} HTTP/1.1",
            "Host: a",
            f"Authorization: Bearer {key}",
            f"Content-Length: {len(body)}",
        ]
        asked = "\r\n".join([*lines, "", body]).encode()
        async with serving(endpoint.app()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            for _ in range(2):
                writer.write(asked)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert b"200 OK" in answer
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.partition(b":")[2]))
                for _ in range(3):
                    look()
                assert here[0] in here[0].connections
            while not came.empty():
                came.get_nowait()
            writer.write(b"POST /e/one HTT")
            await came.get()
            assert here[0]._check_at > 0, "from now on it has so long for the rest"
            look()
            assert await reader.read() == b"", "half a head has its deadline"
            writer.close()

    asyncio.run(work())


def test_only_a_body_that_is_waited_for_has_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = asyncio.timeout

    async def ask(*parts: bytes) -> tuple[bytes, list[float]]:
        """The head of the answer, and for how long the endpoint was ready to wait for the body."""
        waited, waits = list[float](), asyncio.Event()

        def noted(seconds: float) -> asyncio.Timeout:
            waited.append(seconds)
            waits.set()
            return timeout(seconds)

        monkeypatch.setattr(request_limits.asyncio, "timeout", noted)
        endpoint = Endpoint("tiny")
        key = endpoint.open("one", episode_of(Recorded()))
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        async with serving(endpoint.app()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + parts[0])
            for part in parts[1:]:
                await waits.wait()
                writer.write(part)
            said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            writer.close()
        return said.splitlines()[0], waited

    body = json.dumps({"messages": [user("hi")]}).encode()
    assert asyncio.run(ask(body)) == (b"HTTP/1.1 200 OK", [])
    assert asyncio.run(ask(body[:9], body[9:])) == (b"HTTP/1.1 200 OK", [request_limits.BODY_S])
    monkeypatch.setattr(request_limits, "BODY_S", 0.05)
    assert asyncio.run(ask(body[:9])) == (b"HTTP/1.1 408 Request Timeout", [0.05])


def test_what_is_not_there_and_what_may_not_be_asked_so() -> None:
    async def ask() -> list[httpx.Response]:
        endpoint = Endpoint("tiny")
        endpoint.open("one", episode_of(Recorded()))
        transport = httpx.ASGITransport(app=endpoint.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://policy") as http:
            return [await http.get("/nowhere"), await http.get(CHAT_PATH), await http.get(CHAT_PATH + "/")]

    missing, refused, slashed = asyncio.run(ask())
    assert (missing.status_code, missing.text) == (404, "Not Found")
    assert (refused.status_code, refused.text, refused.headers["allow"]) == (405, "Method Not Allowed", "POST")
    assert slashed.status_code == 404 and "location" not in slashed.headers


@pytest.mark.parametrize("text", ["", "plain", 'a "quote" \\ and\n\t\x00', "é 🙂 \u2028 \ud800", "<tool_call>"])
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
def test_messages_without_calls_have_the_form_that_others_have(text: str, role: str) -> None:
    who = [] if role == "assistant" else [role]
    assert form_of({"role": role, "content": f" {text}\n"}) == json.dumps([text.strip(), [], *who], sort_keys=True)


def test_there_may_be_as_many_files_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: limits.append(given))

    async def work() -> None:
        async with serving(Endpoint("tiny").app()):
            assert limits[-1] == (5000, 5000)

    asyncio.run(work())
    limits.append((64, 5000))
    allow_files(20)
    assert limits[-1] == (64, 5000), "never fewer than they were"


def test_the_collector_is_as_it_was_when_the_last_server_has_ended() -> None:
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold() == (YOUNG, *before[1:])
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == YOUNG
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    gc.set_threshold(0, 10, 10)
    try:
        with rare_collections():
            assert gc.get_threshold()[0] == 0, "who has turned it off wants it so"
    finally:
        gc.set_threshold(*before)


def test_the_token_that_ends_a_reply_is_decoded_as_before() -> None:
    for id in (*CHAT.stop_ids, 65, 200):
        whole = CHAT.hf.decode([id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert CHAT.decode([id]) == CHAT.decode([id]) == whole
    assert CHAT.decode([65, CHAT.stop_ids[0]], skip_stop=True) == CHAT.decode([65])
