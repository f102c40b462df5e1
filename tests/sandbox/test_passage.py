"""Connections out of sandboxes: whose fault it is where one is not served."""

from __future__ import annotations

import asyncio
import socket

import pytest

from airloop.sandbox import passage
from airloop.sandbox.passage import Passage


def inside() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(8)
    listening.setblocking(False)
    return listening


@pytest.mark.parametrize(("bound", "blamed"), [("of all", "of all sandboxes"), ("of one", ""), ("gone", "reached")])
def test_only_what_the_sandbox_did_not_do_itself_is_trouble(
    bound: str, blamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage, "most_of_all", lambda: 1 if bound == "of all" else 100)
    monkeypatch.setattr(passage, "MOST_CONNECTIONS", 1 if bound == "of one" else 64)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        await reader.read()
        writer.close()

    async def asked(port: int) -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        try:
            return await reader.read(1), writer
        except ConnectionError:
            return b"", writer

    async def work() -> None:
        far = await asyncio.start_server(echo, "127.0.0.1", 0)
        listening = inside()
        door, port = await Passage.start(listening), listening.getsockname()[1]
        door.target = ("127.0.0.1", far.sockets[0].getsockname()[1])
        if bound == "gone":
            far.close()
            await far.wait_closed()
        answers, lines = zip(*[await asked(port) for _ in range(2)], strict=True)
        assert answers == ((b"", b"") if bound == "gone" else (b"x", b""))
        assert blamed in door.trouble and bool(blamed) == bool(door.trouble)
        for line in lines:
            line.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))  # those that serve the lines
        door.close()
        far.close()

    asyncio.run(work())
