"""The few calls of the Docker Engine's API that the container sandbox needs, over the engine's unix socket.

Docker and Podman both speak it. Ordinary calls are HTTP; `attach` and `exec` turn their connection into a raw
stream on which each piece of output has an 8-byte header: which stream it belongs to, and its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx

from airloop.errors import AirError, InfraError

ANSWER_S = 60.0
PULL_S = 1800.0
STDERR_BYTES = 4096  # of one exec that are kept
STDOUT, STDERR = 1, 2
NO_ENGINE = (
    "start Docker, or Podman's service (`systemctl --user start podman.socket`), or name its socket "
    "(`export DOCKER_HOST=unix:///path/to/the.sock`), or choose the other backend: "
    'args = { sandbox = "bubblewrap" }.'
)


class Refused(InfraError):
    """The engine answered, and would not."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"the container engine refused {what}: {message} (HTTP {status})")
        self.status = status
        self.message = message


def find_socket() -> str:
    """The engine's socket: the one DOCKER_HOST names, or the first usual one that answers."""
    named = os.environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        raise AirError(
            f"DOCKER_HOST is {named!r}, and the container sandbox talks to unix sockets only.",
            "forward the engine's socket to a local one, or unset DOCKER_HOST.",
        )
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = [
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    ]
    tried = [named.removeprefix("unix://")] if named else usual
    for path in tried:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
            trial.settimeout(5.0)
            try:
                trial.connect(path)
            except OSError:
                continue
            return path
    raise AirError(f"No container engine answers (tried {', '.join(tried)}).", NO_ENGINE)


class Stream:
    """A connection that has become a raw stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def frame(self) -> tuple[int, bytes] | None:
        """Which stream and what came on it; None at the end."""
        try:
            kind, size = struct.unpack(">B3xI", await self._reader.readexactly(8))
            return kind, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None

    def write(self, data: bytes) -> None:
        """Never waits and never fails: a broken connection shows at `frame`."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.transport.abort()


@dataclass(frozen=True)
class Done:
    code: int
    stdout: bytes
    stderr: str
    cut: bool  # stdout is longer than was asked for


class Engine:
    """One engine, once it has told which it is."""

    def __init__(self, path: str, client: httpx.AsyncClient) -> None:
        self.path = path
        self._client = client
        self.prefix = ""
        self.podman = False
        self.version = ""

    @classmethod
    async def connect(cls, path: str) -> Self:
        # No certificates are read for a unix socket, and the environment's proxies are none of its business.
        transport = httpx.AsyncHTTPTransport(uds=path, verify=False, limits=httpx.Limits(max_keepalive_connections=8))
        engine = cls(path, httpx.AsyncClient(transport=transport, base_url="http://engine", trust_env=False))
        facts = await engine.ask("GET", "/version")
        engine.prefix = f"/v{facts['ApiVersion']}"
        engine.podman = any("podman" in part.get("Name", "").lower() for part in facts.get("Components") or [])
        engine.version = f"{'Podman' if engine.podman else 'Docker'} {facts.get('Version', '')}"
        return engine

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, body: Any = None, timeout: float = ANSWER_S, **query: str) -> Any:
        """The answer's JSON (None if there is none). Refused, or InfraError if no answer came."""
        try:
            answer = await self._client.request(
                method, self.prefix + path, json=body, params=query or None, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise InfraError(f"the container engine did not answer {method} {path}: {error!r}") from error
        if answer.status_code >= 400:
            raise Refused(f"{method} {path}", answer.status_code, _message(answer.content))
        return answer.json() if answer.content else None

    async def runtime_of(self, container: str) -> str:
        """By what it is run; "" where that is not told. Podman tells it by its own interface only."""
        if not self.podman:
            return str((await self.ask("GET", f"/containers/{container}/json"))["HostConfig"].get("Runtime") or "")
        return str((await self._ask_podman(f"/containers/{container}/json")).get("OCIRuntime") or "")

    async def filter_file(self) -> str:
        """Where Podman's own filter of system calls lies on its machine; "" where that is not told."""
        security = ((await self._ask_podman("/info")).get("host") or {}).get("security") or {}
        return str(security.get("seccompProfilePath") or "") if security.get("seccompEnabled") else ""

    async def _ask_podman(self, path: str) -> dict[str, Any]:
        """By its own interface; empty where this version has it not."""
        try:
            answer = await self._client.get(f"/v4.0.0/libpod{path}", timeout=ANSWER_S)
            return dict(answer.json()) if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError) as error:
            raise InfraError(f"the container engine did not answer GET /libpod{path}: {error!r}") from error

    def remove_now(self, containers: Sequence[str]) -> None:
        """Without an event loop, and whatever the engine says to it."""
        transport = httpx.HTTPTransport(uds=self.path, verify=False)
        with httpx.Client(transport=transport, base_url="http://engine", trust_env=False, timeout=ANSWER_S) as client:
            for container in containers:
                with contextlib.suppress(httpx.HTTPError):
                    client.delete(f"{self.prefix}/containers/{container}", params={"force": "true", "v": "true"})

    async def raw(self, path: str, body: Any = None) -> Stream:
        """POSTs and takes the connection over."""
        data = json.dumps(body).encode() if body is not None else b""
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self.path, limit=1 << 20)
                try:
                    writer.write(head.encode() + data)
                    answer = await reader.readuntil(b"\r\n\r\n")
                    status = int(answer.split(b" ", 2)[1])
                    if status not in (101, 200):
                        raise Refused(f"POST {path}", status, _message(await _body(answer, reader)))
                except BaseException:
                    writer.close()
                    raise
        except (OSError, TimeoutError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
            raise InfraError(f"the container engine did not answer POST {path}: {error!r}") from error
        return Stream(reader, writer)

    async def pull(self, image: str) -> None:
        """Progress and errors both come as lines of a successful answer. A name without a tag means all tags."""
        tagged = image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"
        path = f"{self.prefix}/images/create"
        try:
            async with self._client.stream("POST", path, params={"fromImage": tagged}, timeout=PULL_S) as answer:
                if answer.status_code >= 400:
                    raise Refused(f"to pull {image}", answer.status_code, _message(await answer.aread()))
                async for line in answer.aiter_lines():
                    if line.strip() and (said := json.loads(line).get("error")):
                        raise Refused(f"to pull {image}", answer.status_code, str(said))
        except httpx.HTTPError as error:
            raise InfraError(f"the container engine did not answer while pulling {image}: {error!r}") from error

    # --- processes beside the first one -------------------------------------------------------------------

    async def start_exec(self, container: str, command: Sequence[str], user: str) -> tuple[str, Stream]:
        wish = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False}
        made = await self.ask("POST", f"/containers/{container}/exec", {**wish, "Cmd": list(command), "User": user})
        id = quote(made["Id"])
        return id, await self.raw(f"/exec/{id}/start", {"Detach": False, "Tty": False})

    async def execute(
        self, container: str, command: Sequence[str], user: str, stdin: bytes = b"", limit: int = 1 << 20
    ) -> Done:
        """Runs a command to its end. It must know by itself where its input ends: the stream stays open."""
        try:
            async with asyncio.timeout(ANSWER_S):
                id, stream = await self.start_exec(container, command, user)
                sending = asyncio.create_task(_send_all(stream, stdin))
                try:
                    stdout, stderr, cut = await _collect(stream, limit)
                finally:
                    sending.cancel()
                    stream.close()
                code = 0 if cut else await self._exit_code(id)
        except TimeoutError as error:
            raise InfraError(f"a command in the container did not end within {ANSWER_S:g} s: {command[0]}") from error
        return Done(code, stdout, stderr.decode(errors="replace").strip(), cut)

    async def _exit_code(self, id: str) -> int:
        """The stream may end a moment before the engine knows how the process did."""
        pause = 0.005
        while True:
            facts = await self.ask("GET", f"/exec/{id}/json")
            if not facts.get("Running") and facts.get("ExitCode") is not None:
                return int(facts["ExitCode"])
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.2)


async def _send_all(stream: Stream, data: bytes) -> None:
    try:
        for start in range(0, len(data), 1 << 18):
            stream.write(data[start : start + (1 << 18)])
            await stream.drain()
    except OSError:
        pass  # the command has ended without reading it all: its exit code says why


async def _collect(stream: Stream, limit: int) -> tuple[bytes, bytearray, bool]:
    stdout, stderr = bytearray(), bytearray()
    while (frame := await stream.frame()) is not None:
        kind, data = frame
        if kind == STDERR:
            stderr += data[: STDERR_BYTES - len(stderr)]
            continue
        stdout += data
        if len(stdout) > limit:
            return bytes(stdout[:limit]), stderr, True
    return bytes(stdout), stderr, False


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """What an error says; the connection may stay open after it."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2]))
    try:
        return await asyncio.wait_for(reader.read(4096), 1.0)
    except TimeoutError:
        return b""


def _message(body: bytes) -> str:
    try:
        said = json.loads(body)
        return str(said.get("message") or said.get("cause") or said)
    except (ValueError, AttributeError):
        return body.decode(errors="replace").strip()[:500]
