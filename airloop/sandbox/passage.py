"""A way from inside a sandbox to one address outside, for agents that have somebody to ask.

The sandbox's own network has its loopback and nothing else. One port of it is served from out here, and whatever
connects to it speaks with the one address that it leads to: what is said is carried as it is, and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import ClassVar, Self

MOST_CONNECTIONS = 64  # of one sandbox at one time: sub-agents side by side
MOST_FOR_ALL = 4096
CONNECT_S = 20.0


class Passage:
    """No sandbox can use up the files that this process may have open: there is a bound for each, and one for all."""

    everyone: ClassVar[set[asyncio.StreamWriter]] = set()

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None  # until it leads somewhere, whoever comes is hung up on
        self.trouble = ""  # why one that it should have served was not: no doing of the sandbox's
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
        crowded = len(self._open) >= MOST_CONNECTIONS
        if not crowded and len(self.everyone) >= most_of_all():
            crowded, self.trouble = True, f"there were {most_of_all()} connections of all sandboxes, the most"
        if self.target is None or crowded:
            writer.close()
            return
        for group in (self._open, self.everyone):
            group.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(*self.target)
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        except (OSError, TimeoutError) as error:
            self.trouble = f"the endpoint could not be reached: {type(error).__name__}: {error}"
        finally:
            for group in (self._open, self.everyone):
                group.discard(writer)
            writer.close()
            if far_writer is not None:
                far_writer.close()


def most_of_all() -> int:
    """Each takes three files, with the one of who is spoken with: together at most half of all."""
    try:
        import resource  # not on Windows
    except ImportError:
        return MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FOR_ALL if soft == resource.RLIM_INFINITY else min(MOST_FOR_ALL, soft // 6)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, until its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
