"""The one way out of a world that may have one: an HTTP proxy that knows a list of hosts.

It listens on the world's own loopback and connects from the host, so the world itself still has no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

CONNECT_S = 20.0
MOST_CONNECTIONS = 64  # of one world at one time
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
UNREACHABLE = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Proxy:
    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = frozenset(name.lower() for name in allowed)
        self.refused: list[str] = []
        self._open = 0
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls, listening: socket.socket, allowed: Sequence[str]) -> Self:
        proxy = cls(allowed)
        proxy._server = await asyncio.start_server(proxy._serve, sock=listening)
        return proxy

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def may(self, host: str, port: int) -> bool:
        return host.lower() in self.allowed or f"{host.lower()}:{port}" in self.allowed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                writer.write(BUSY)
                return
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CONNECT_S)
            await self._answer(head, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ", 2)
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or (443 if method == "CONNECT" else 80)
        if not self.may(host, port):
            self.refused = [*self.refused[-99:], f"{host}:{port}"]
            writer.write(REFUSED)
            return
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
        except (OSError, TimeoutError):
            writer.write(UNREACHABLE)
            return
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            far_writer.write(f"{method} {path} {version}\r\n".encode("latin-1") + rest)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
