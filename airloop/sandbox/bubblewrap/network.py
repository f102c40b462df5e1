"""The one way out of a sandbox that may have one: an HTTP proxy that knows a list of hosts.

It listens on the sandbox's own loopback and connects from the host, so the sandbox itself still has no network. What is
allowed is decided by what is connected to: the name in the request's target, and the address that this name has at
that moment. A header decides nothing, and `Host` is written here. What goes on inside a TLS tunnel nobody can see: a
name on the list stands for all that its addresses serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from airloop.errors import AirError
from airloop.sandbox.passage import pump

CONNECT_S = 20.0
MOST_CONNECTIONS = 64  # of one sandbox at one time
HTTP, HTTPS = 80, 443  # what a host without a port stands for
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses as IPv6 networks see them
# Of one hop: between the agent and us, not between us and the server. Whoever sees `host` twice may choose.
OWN_HEADERS = frozenset(
    {"connection", "host", "keep-alive", "te", "upgrade"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
REQUEST_LINE = re.compile(r"([A-Z]{1,20}) ([\x21-\x7e]+) (HTTP/1\.[01])")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::([0-9]{1,5}))?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refusal(Exception):
    """A request that is answered here, and how."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.answer = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()


BUSY = "503 Service Unavailable"
MALFORMED = "400 Bad Request"
REFUSED = "403 Forbidden"
UNMEASURED = "411 Length Required"
UNREACHABLE = "502 Bad Gateway"


@dataclass(frozen=True)
class Request:
    tunnel: bool  # CONNECT: bytes go both ways; else one request and its answer
    host: str
    port: int
    head: bytes = b""  # as the server gets it
    body_bytes: int = 0


class Proxy:
    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = frozenset(place for name in allowed for place in _places(name))
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
        return (_plain(host), port) in self.allowed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                raise Refusal(BUSY)
            async with asyncio.timeout(CONNECT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(read_request(head), reader, writer)
        except Refusal as refusal:
            writer.write(refusal.answer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, asked: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await self._connect(asked)
        try:
            if asked.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
                return
            far_writer.write(asked.head)
            await asyncio.gather(_pass_on(reader, far_writer, asked.body_bytes), pump(far_reader, writer))
        finally:
            far_writer.close()

    async def _connect(self, asked: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To an address that was looked at, not to a name that may mean another one the next time."""
        # A tunnel to where plain HTTP is spoken would carry any Host header.
        if not self.may(asked.host, asked.port) or (asked.tunnel and asked.port == HTTP):
            raise self._refuse(asked)
        try:
            async with asyncio.timeout(CONNECT_S):
                found = await asyncio.get_running_loop().getaddrinfo(asked.host, asked.port, type=socket.SOCK_STREAM)
                addresses = [str(at[0]) for *_, at in found if self._reachable(asked, str(at[0]))]
                if not addresses:
                    raise self._refuse(asked)
                for place, address in enumerate(addresses, 1):
                    try:
                        return await asyncio.open_connection(address, asked.port)
                    except OSError:
                        if place == len(addresses):
                            raise
        except (OSError, UnicodeError, TimeoutError):
            raise Refusal(UNREACHABLE) from None
        raise Refusal(UNREACHABLE)

    def _reachable(self, asked: Request, found: str) -> bool:
        """A public address; any other, of this machine or the networks around it, only if the list has it itself.
        The name `localhost` means loopback and nothing else, so it stands for its addresses."""
        address = ipaddress.ip_address(found)
        if self.may(found, asked.port) or (address.is_loopback and _plain(asked.host) == "localhost"):
            return True
        return all(part.is_global and not part.is_multicast for part in _meant(address))

    def _refuse(self, asked: Request) -> Refusal:
        self.refused = [*self.refused[-99:], f"{asked.host[:200]}:{asked.port}"]
        return Refusal(REFUSED)


def read_request(head: bytes) -> Request:
    """Strictly: whatever two readers could take for two things is refused."""
    line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = REQUEST_LINE.fullmatch(line)
    headers = [HEADER.fullmatch(text) for text in lines]
    if found is None or None in headers:
        raise Refusal(MALFORMED)
    method, target, version = found.groups()
    if method == "CONNECT":
        return Request(True, *_authority(target, HTTPS))
    try:
        url = urlsplit(target)
    except ValueError:
        raise Refusal(MALFORMED) from None
    if url.scheme != "http":
        raise Refusal(MALFORMED)
    host, port = _authority(url.netloc, HTTP)
    given = [(header[1], header[2].strip(" \t")) for header in headers if header is not None]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    own = [("Host", _written(host, port)), ("Connection", "close")]
    kept = [(name, value) for name, value in given if name.lower() not in _dropped(given)]
    text = "".join(f"{name}: {value}\r\n" for name, value in [*own, *kept])
    return Request(False, host, port, f"{method} {path} {version}\r\n{text}\r\n".encode("latin-1"), _length(given))


def _dropped(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Those of one hop: which the request itself may add to, but not what says how long it is."""
    named = {
        part.strip().lower() for name, value in headers if name.lower() == "connection" for part in value.split(",")
    }
    return OWN_HEADERS | (named - {"content-length"})


def _length(headers: Sequence[tuple[str, str]]) -> int:
    """Of the body. One that is sent in pieces could go on as another request; no client here needs that."""
    if any(name.lower() == "transfer-encoding" for name, _ in headers):
        raise Refusal(UNMEASURED)
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
        raise Refusal(MALFORMED)
    return int(lengths[0])


def _authority(text: str, port: int) -> tuple[str, int]:
    """Host and port. With a user's name or anything else it is refused: others may read it differently."""
    found = AUTHORITY.fullmatch(text)
    if found is None or int(found[2] or port) not in range(1, 65536):
        raise Refusal(MALFORMED)
    return _plain(found[1]), int(found[2] or port)


def _places(name: str) -> Iterator[tuple[str, int]]:
    """The hosts and ports that one name of the list stands for."""
    if _is_address(name):
        yield from ((_plain(name), port) for port in (HTTP, HTTPS))
        return
    try:
        yield from {_authority(name, port) for port in (HTTP, HTTPS)}
    except Refusal:
        raise AirError(
            f"{name[:80]!r} names no host that agents may reach.", 'write "host" or "host:port", without anything else.'
        ) from None


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(text.strip("[]"))
        return True
    return False


def _plain(host: str) -> str:
    """One form for each host: addresses as Python writes them, names in small letters without the root's dot."""
    bare = host.strip("[]")
    return str(ipaddress.ip_address(bare)) if _is_address(bare) else bare.lower().rstrip(".")


def _written(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == HTTP else f"{shown}:{port}"


def _meant(address: Address) -> list[Address]:
    """An address, and the IPv4 addresses that lie in it and are where packets to it may end."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    return [address, *(part for part in inner if part is not None)]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    """A request's body, and nothing after it: what follows would be a request that nobody has looked at. When the
    agent hangs up, so do we."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            if count:
                writer.write(data[:count])
                count -= len(data[:count])
                await writer.drain()
    writer.close()
