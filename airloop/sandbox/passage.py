"""A way from inside a world to one address outside, for agents that have somebody to ask.

The world's own network has its loopback and nothing else. One port of it is served from out here, and whatever
connects to it speaks with the one address that it leads to: what is said is carried as it is, and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Self

MOST_CONNECTIONS = 256  # of one world at one time: sub-agents side by side, each with a few
CONNECT_S = 20.0


class Passage:
    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None  # until it leads somewhere, whoever comes is hung up on
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(cls, listening: socket.socket) -> Self:
        passage = cls()
        passage._server = await asyncio.start_server(passage._serve, sock=listening)
        return passage

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None or len(self._open) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(*self.target)
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        except (OSError, TimeoutError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()
            if far_writer is not None:
                far_writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, until its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
