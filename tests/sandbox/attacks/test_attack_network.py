"""Attacks through sockets: what the host serves on its own addresses, and what it passes on."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace

import pytest
from support.attack_arena import IMAGE, Arena

TRY = """
import os, socket
def attempt(name, make):
    try:
        make()
    except OSError:
        return
    print("worked:", name)
"""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_hosts_services_cannot_be_reached(arena: Arena, family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    addresses = {host, "0.0.0.0" if family == socket.AF_INET else "::"}
    if family == socket.AF_INET:
        addresses |= {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, family)}  # type: ignore[arg-type]
    with socket.create_server((host, 0), family=family) as tcp, socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.bind((host, 0))
        udp.settimeout(0.2)
        lines = [TRY]
        for address in addresses:
            lines.append(f"attempt('tcp', lambda: socket.create_connection(({address!r}, {tcp.getsockname()[1]}), 1))")
            lines.append(f"s = socket.socket({int(family)}, socket.SOCK_DGRAM)")
            lines.append(f"try: s.sendto(b'x', ({address!r}, {udp.getsockname()[1]}))\nexcept OSError: pass")
        lines.append("print('done')")
        assert arena.python("\n".join(lines)) == "done\n"
        with pytest.raises(TimeoutError):
            udp.recv(1)


def test_abstract_sockets_and_paths_of_the_host_cannot_be_reached(arena: Arena) -> None:
    name = f"\0air-attack-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        source = TRY + f"s = socket.socket(socket.AF_UNIX)\nattempt('abstract', lambda: s.connect({name!r}))\n"
        for path in (
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/run/dbus/system_bus_socket",
            *([] if arena.container else [arena.backend.door("files").address]),
        ):
            source += f"attempt({path!r}, lambda: socket.socket(socket.AF_UNIX).connect({path!r}))\n"
        assert arena.python(source + "print('done')") == "done\n"


def test_no_raw_socket_no_packet_no_route_can_be_made(arena: Arena) -> None:
    source = (
        TRY
        + """
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("raw 6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("ping outside", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).sendto(b"\\x08\\0\\0\\0\\0\\0\\0\\0", ("8.8.8.8", 0)))
attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
print([name for _, name in socket.if_nameindex() if name != "lo"] or "done")
"""
    )
    assert arena.python(source).splitlines()[-1:] == ["done"]
    assert "worked" not in arena.python(source)


@pytest.mark.bubblewrap
def test_no_socket_to_the_hypervisor_can_be_made(arena: Arena) -> None:
    """Made only, never connected."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError:
        pytest.xfail("this kernel has none")
    assert "worked" not in arena.python(TRY + "attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))")


REQUEST = """
import socket
for head in ({heads}):
    s = socket.create_connection(("127.0.0.1", 3128), 3)
    s.sendall(head + b"\\r\\n\\r\\n")
    print(s.recv(12))
    s.close()
"""


@pytest.mark.bubblewrap
def test_the_way_out_leads_where_it_may_and_nowhere_else(arena: Arena) -> None:
    async def work() -> list[str]:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SECRET")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            heads = [f"CONNECT {target} HTTP/1.1".encode() for target in (
                f"127.0.0.1:{port}", f"localhost:{port}", f"0:{port}", f"allowed.example@127.0.0.1:{port}",
                f"127.0.0.1:{port}#allowed.example:80", f"[::ffff:127.0.0.1]:{port}", "allowed.example:99999", ":1",
            )]  # fmt: skip
            heads += [f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: allowed.example".encode(), b"\xff" * 100, b"GET"]
            sandbox = await arena.sandbox(replace(IMAGE, network=("allowed.example",)))
            await sandbox.put("ask.py", REQUEST.format(heads=", ".join(map(repr, heads))).encode())
            said = (await sandbox.run("python ask.py 2>&1", 30)).output.splitlines()
            await sandbox.close()
            return said

    assert not [line for line in arena.do(work()) if "200" in line or "SECRET" in line]


@pytest.mark.bubblewrap
def test_a_flood_of_connections_to_the_way_out_is_bounded(arena: Arena) -> None:
    flood = "import socket, time\nx = []\nfor _ in range(200): x.append(socket.create_connection(('127.0.0.1', 3128)))\nprint(len(x), flush=True); time.sleep(9)"

    async def work() -> int:
        sandbox = await arena.sandbox(replace(IMAGE, network=("allowed.example",)))
        await sandbox.put("flood.py", flood.encode())
        before = len(os.listdir("/proc/self/fd"))
        await sandbox.run("for i in 1 2 3; do python flood.py & done; sleep 2", 10)
        held = len(os.listdir("/proc/self/fd")) - before
        await sandbox.close()
        return held

    assert arena.do(work()) < 256
