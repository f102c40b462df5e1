"""The way out of a sandbox, attacked from its inside: servers and resolver are this test's, all on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airloop.errors import AirError
from airloop.sandbox.bubblewrap.network import MOST_CONNECTIONS, Proxy

Names = dict[str, list[str]]
PATIENCE_S = 5.0


class Far:
    """A server that keeps what it was sent and answers each head that comes with its number."""

    def __init__(self) -> None:
        self.connections: list[bytearray] = []
        self.port = 0

    async def __aenter__(self) -> Far:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = bytearray()
        self.connections.append(got)
        while data := await reader.read(65536):
            got += data
            if b"\r\n\r\n" in got:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nfar")
                await asyncio.sleep(0.2)  # what is smuggled behind the request would come now
                break
        writer.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """What the resolver says: a list of answers, one for each time it is asked."""
    known: Names = {}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **named: Any) -> Any:
        if host in known:
            host = known[host].pop(0)
        elif isinstance(host, str) and host.endswith(".example"):
            raise socket.gaierror("no such name")
        return real(host, port, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield known


def through(allowed: Callable[[int], list[str]], *requests: str) -> tuple[list[bytes], Far, Proxy]:
    """The answers to requests in which PORT stands for the far server's port."""

    async def work() -> tuple[list[bytes], Far, Proxy]:
        async with Far() as far:
            listening = socket.create_server(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            proxy = await Proxy.start(listening, allowed(far.port))
            answers = [await say(port, text.replace("PORT", str(far.port))) for text in requests]
            proxy.close()
            return answers, far, proxy

    return asyncio.run(work())


async def say(port: int, text: str) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text.encode("latin-1"))
        answer = await reader.read()
        writer.close()
        return answer


def status(answer: bytes) -> str:
    return answer[9:12].decode()


def test_the_host_header_is_that_of_the_target_and_only_one_request_gets_through() -> None:
    second = "GET http://127.0.0.1:PORT/second HTTP/1.1\r\nHost: inner.example\r\n\r\n"
    answers, far, _ = through(
        lambda port: [f"127.0.0.1:{port}"],
        "GET http://127.0.0.1:PORT/a?b=c#d HTTP/1.1\r\nHost: inner.example\r\nhOsT: other.example\r\n"
        "Proxy-Authorization: x\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n\r\n" + second,
        "POST http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody" + second,
        "GET http://127.0.0.1:PORT HTTP/1.0\r\n\r\n",
    )
    assert [status(answer) for answer in answers] == ["200"] * 3 and all(a.endswith(b"far") for a in answers)
    own = f"Host: 127.0.0.1:{far.port}\r\nConnection: close\r\n"
    assert far.connections == [
        f"GET /a?b=c HTTP/1.1\r\n{own}X-Kept: 2\r\n\r\n".encode(),
        f"POST / HTTP/1.1\r\n{own}Content-Length: 4\r\n\r\nbody".encode(),
        f"GET / HTTP/1.0\r\n{own}\r\n".encode(),
    ]


@pytest.mark.parametrize(
    "request_text",
    [
        "GET http://allowed.example@127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:PORT\\@allowed.example/ HTTP/1.1\r\n\r\n",
        "GET https://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost : inner.example\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nX: 1\r\n Host: inner.example\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nX: 1\nHost: inner.example\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nX: 1\rHost: inner.example\r\n\r\n",
        "GET http://127.0.0.1:PORT/\tHTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/2\r\n\r\n",
        "POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nbody",
        "POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: +4\r\n\r\nbody",
        "POST http://127.0.0.1:PORT/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "CONNECT 127.0.0.1:PORT/x HTTP/1.1\r\n\r\n",
        "CONNECT user@127.0.0.1:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:99999 HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n",
        "\xff\xff\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(request_text: str) -> None:
    (answer,), far, _ = through(lambda port: [f"127.0.0.1:{port}", "allowed.example"], request_text)
    assert status(answer) in ("400", "411") and not far.connections


def test_a_host_without_a_port_stands_for_80_and_443_alone(names: Names) -> None:
    proxy = Proxy(["Allowed.example", "other.example:8080", "::1", "[2001:db8::1]:99"])
    for host, port in (("allowed.example", 80), ("ALLOWED.example.", 443), ("other.example", 8080), ("[::1]", 443)):
        assert proxy.may(host, port), (host, port)
    for host, port in (("allowed.example", 22), ("allowed.example", 8080), ("other.example", 80), ("::1", 99)):
        assert not proxy.may(host, port), (host, port)
    assert proxy.may("2001:DB8:0::1", 99) and not proxy.may("2001:db8::1", 80)
    names["allowed.example"] = ["127.0.0.1"] * 2
    answers, far, refusing = through(
        lambda _: ["allowed.example", "127.0.0.1"],
        "CONNECT allowed.example:PORT HTTP/1.1\r\n\r\n",
        "GET http://allowed.example:PORT/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
        "CONNECT allowed.example:80 HTTP/1.1\r\n\r\n",  # in which any Host could be said
    )
    assert [status(answer) for answer in answers] == ["403"] * 4 and not far.connections
    assert refusing.refused[0] == f"allowed.example:{far.port}" and names["allowed.example"] == ["127.0.0.1"] * 2


OURS = "127.0.0.1 127.8.8.8 0.0.0.0 10.0.0.1 192.168.1.1 172.16.0.1 169.254.169.254 100.64.0.1 224.0.0.1 ::1 :: fe80::1"
HIDDEN = "fd00::1 ff02::1 ::ffff:127.0.0.1 2002:7f00:1:: 64:ff9b::7f00:1"


@pytest.mark.parametrize("address", f"{OURS} {HIDDEN}".split())
def test_an_allowed_name_does_not_lead_to_this_machine_or_its_networks(names: Names, address: str) -> None:
    names["allowed.example"] = [address] * 2
    (tunnel, plain), far, proxy = through(
        lambda port: [f"allowed.example:{port}"],
        "CONNECT allowed.example:PORT HTTP/1.1\r\n\r\n",
        "GET http://allowed.example:PORT/ HTTP/1.1\r\n\r\n",
    )
    assert (status(tunnel), status(plain)) == ("403", "403") and not far.connections and len(proxy.refused) == 2


def test_an_address_that_is_named_itself_can_be_reached_also_by_a_name(names: Names) -> None:
    names["allowed.example"] = ["127.0.0.1"] * 2
    both, far, _ = through(
        lambda port: [f"allowed.example:{port}", f"127.0.0.1:{port}"],
        "GET http://allowed.example:PORT/ HTTP/1.1\r\nHost: inner.example\r\n\r\n",
        "CONNECT allowed.example:PORT HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    )
    assert [status(answer) for answer in both] == ["200", "200"] and both[1].endswith(b"far")
    assert f"Host: allowed.example:{far.port}\r\n".encode() in far.connections[0] and b"inner" not in far.connections[0]
    (own,), _, _ = through(lambda port: [f"localhost:{port}"], "GET http://localhost:PORT/ HTTP/1.1\r\n\r\n")
    assert status(own) == "200"
    (unnamed,), _, _ = through(lambda port: [f"localhost:{port}"], "GET http://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n")
    assert status(unnamed) == "403"


def test_a_name_is_asked_for_once_and_what_it_meant_then_is_connected_to(names: Names) -> None:
    """The second answer is another machine's: between a look and a connection a name can change."""
    names["allowed.example"] = ["127.0.0.2", "127.0.0.1"]
    (answer,), far, _ = through(
        lambda port: [f"allowed.example:{port}", f"127.0.0.2:{port}"],
        "CONNECT allowed.example:PORT HTTP/1.1\r\n\r\n",
    )
    assert status(answer) == "502" and not far.connections and names["allowed.example"] == ["127.0.0.1"]


def test_a_name_that_is_not_known_is_unreachable(names: Names) -> None:
    (answer, long), _, _ = through(
        lambda _: ["allowed.example", "x" * 70],
        "CONNECT allowed.example:443 HTTP/1.1\r\n\r\n",
        f"CONNECT {'x' * 70}:443 HTTP/1.1\r\n\r\n",
    )
    assert (status(answer), status(long)) == ("502", "502")


@pytest.mark.parametrize(
    "name", ["https://allowed.example", "host:port", "host:0", "host:99999", "", "a b", "a/b", ":80"]
)
def test_a_list_that_names_no_host_is_refused(name: str) -> None:
    with pytest.raises(AirError, match="names no host"):
        Proxy([name])


def test_half_sent_requests_end_and_more_than_the_bound_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airloop.sandbox.bubblewrap.network.CONNECT_S", 0.5)

    async def work() -> tuple[bytes, bytes]:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        proxy = await Proxy.start(listening, ["allowed.example"])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET ")
        busy = await say(port, "")
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in held:
                await reader.read()
        after = await say(port, "CONNECT other.example:443 HTTP/1.1\r\n\r\n")
        proxy.close()
        return busy, after

    busy, after = asyncio.run(work())
    assert (status(busy), status(after)) == ("503", "403")
