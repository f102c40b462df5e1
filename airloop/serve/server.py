"""The endpoint's HTTP server, in the event loop of the trainer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from airloop.errors import AirError
from airloop.open_files import allow_files

QUEUED = 512  # connections that the system holds while the loop is busy
KEEP_ALIVE_S = 75  # longer than clients keep a connection that they do not use
YOUNG = 20_000  # new objects before Python's garbage collector runs
CLOSE_S = 5.0  # for answers that are under way when it ends
DATE_S = 1.0  # between two looks at the clock, for the date in the head of answers


@asynccontextmanager
async def serving(
    app: Any, host: str = "127.0.0.1", port: int = 0, crowded: Callable[[str], object] = lambda owner: None
) -> AsyncIterator[str]:
    """The address, while the application is served in this event loop. `crowded` hears of every connection that was
    closed for others or refused unread, with the id of its episode if that is known.

        async with serving(endpoint.app()) as url:
            print(f"{url}/v1")

    AirError where the address cannot be had.
    """
    import uvicorn

    from airloop.serve.connections import BACKLOG, AgentConnection, quiet_logs

    allow_files()
    ready, ended = asyncio.Event(), asyncio.Event()

    class Ours(AgentConnection):
        def crowded(self, owner: str = "") -> None:
            crowded(owner)

    class Server(uvicorn.Server):
        def capture_signals(self) -> Any:
            return contextlib.nullcontext()  # they are the run's

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            listening.listen(QUEUED)
            ready.set()

        # uvicorn asks ten times a second whether to end, and then gives connections a tenth of one to go: with that
        # each step of programs, and each evaluation, would end.
        async def main_loop(self) -> None:
            while not await self.on_tick(0):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), DATE_S)

        async def shutdown(self, sockets: Any = None) -> None:
            for server in self.servers:
                server.close()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Ours) and connection.is_idle:
                    connection.shutdown()
            await asyncio.sleep(0)  # in which those that were closed go
            if self.server_state.connections or self.server_state.tasks:
                await super().shutdown(sockets)

    listening = bind_socket(host, port)
    config = uvicorn.Config(
        app,
        http=Ours,
        ws="none",
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(CLOSE_S),
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        lifespan="off",
    )
    server = Server(config)
    with quiet_logs(), rare_collections(), listening:
        task = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            up = asyncio.ensure_future(ready.wait())
            await asyncio.wait({up, task}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if task.done():
                task.result()  # what went wrong, where it did
            yield _address(listening, host)
        finally:
            server.should_exit = True
            ended.set()
            await task


_thresholds: list[tuple[int, int, int]] = []  # what the thresholds were, for each server that runs


@contextmanager
def rare_collections() -> Iterator[None]:
    """While a server runs. All that belongs to answers under way is alive, and each makes more objects than Python's
    collector waits for (700): it would look through all of them several times for each, find nothing, and take them for
    old, until it looks through everything, which stops all answers at once."""
    _thresholds.append(gc.get_threshold())
    first, *others = _thresholds[0]
    gc.set_threshold(max(first, YOUNG) if first else 0, *others)  # 0: somebody has turned it off
    try:
        yield
    finally:
        before = _thresholds[0]
        _thresholds.pop()
        if not _thresholds:
            gc.set_threshold(*before)


def bind_socket(host: str, port: int) -> socket.socket:
    """With its protocol, by which asyncio knows a connection that is not to wait for more (TCP_NODELAY): without it the
    second half of an answer comes 40 ms after the first. Of a name's addresses, the first that can be had."""
    problem: Exception | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        found, problem = [], error
    for family, kind, proto, _, address in found:
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            return made
        except OSError as error:
            made.close()
            problem = error
    raise AirError(f"air cannot listen on {host}:{port}: {problem}.", "name another --port, or --host.")


def _address(listening: socket.socket, host: str) -> str:
    """As a program on this machine reaches it."""
    bare = host.strip("[]")
    named = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(bare, bare)
    return f"http://{f'[{named}]' if ':' in named else named}:{listening.getsockname()[1]}"
