"""A way to a server on which replies are harmed as told: in the test's own event loop, over real sockets.

It reads HTTP as far as it must to know where a piece of a streamed reply begins and ends: a chunk is a piece, as our
stand-ins send them. Whatever is not a reply goes through as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

REPLY = b"POST /inference/v1/generate"
COMMENT = b": still here\n\n"
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Broken(Exception):
    """This connection is not to be used any more."""


@dataclass
class Fault:
    """What happens to replies at their piece number `at`, so many `times`; with at = -1 to the head of the answer.

    kind: "delay" (for `seconds`), "cut" (the connection is reset after `byte` bytes of the piece), "half" (nothing
    more comes from there, and the end of it is said), "flip" (a bit of the byte number `byte`), "change" (`change` is
    made to the piece's text), "lose" (the piece), "twice", "stall" (nothing more comes), "drip" (only comments come,
    for ever), "request" (the request is cut in its middle, and never arrives).
    """

    kind: str
    at: int = 0
    byte: int = 0
    bit: int = 0
    seconds: float = 0.0
    times: int = 1
    change: Callable[[str], str] = str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at}, byte {self.byte}, bit {self.bit}"


@dataclass
class FaultProxy:
    """Between whoever connects to `port` and the server at `behind`."""

    behind: int
    port: int = 0
    fault: Fault | None = None
    met: int = 0  # faults that have happened
    replies: int = 0  # that were asked for
    _server: asyncio.Server | None = field(default=None, repr=False)
    _open: set[asyncio.Task[None]] = field(default_factory=set, repr=False)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def harming(self, fault: Fault) -> AsyncIterator[None]:
        self.fault, self.met = fault, 0
        try:
            yield
        finally:
            self.fault = None

    async def _serve(self, near: Reader, back: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        on: Writer | None = None
        try:
            far, on = await asyncio.open_connection("127.0.0.1", self.behind)
            with contextlib.suppress(Broken, OSError, asyncio.IncompleteReadError):
                while True:
                    await self._exchange(near, back, far, on)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for writer in (back, on):
                if writer is not None:
                    writer.transport.abort()

    async def _exchange(self, near: Reader, back: Writer, far: Reader, on: Writer) -> None:
        """One request and its answer."""
        head = await near.readuntil(b"\r\n\r\n")
        body = await near.readexactly(_length(head))
        reply = head.startswith(REPLY)
        self.replies += reply
        if reply and (fault := self._due("request")) is not None:
            on.write(head + body[: len(body) // 2])
            await on.drain()
            raise Broken(fault)
        on.write(head + body)
        answering = asyncio.ensure_future(self._answer(back, far, reply))
        hung_up = asyncio.ensure_future(near.read(1))  # whoever asked: the server must see it, too
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Broken("whoever asked has hung up")
            await answering
            if hung_up.done():
                raise Broken("it was closed")
        finally:
            for task in (answering, hung_up):
                task.cancel()
            await asyncio.gather(answering, hung_up, return_exceptions=True)

    async def _answer(self, back: Writer, far: Reader, reply: bool) -> None:
        head = await far.readuntil(b"\r\n\r\n")
        if reply and (fault := self._due("flip", "stall", at=-1)) is not None:
            head = await self._harmed(fault, back, head)
        back.write(head)
        if b"chunked" not in head.lower():
            back.write(await far.readexactly(_length(head)))
            return
        number = 0
        while True:
            size = int(await far.readline(), 16)
            piece = (await far.readexactly(size + 2))[:-2]
            if reply and size and (fault := self._due(at=number)) is not None:
                piece = await self._harmed(fault, back, piece)
            if piece or not size:
                back.write(_chunk(piece))
            await back.drain()
            if not size:
                return
            number += 1

    def _due(self, *kinds: str, at: int | None = None) -> Fault | None:
        fault = self.fault
        if fault is None or self.met >= fault.times or (kinds and fault.kind not in kinds):
            return None
        if at is not None and (fault.at != at or fault.kind == "request"):
            return None
        self.met += 1
        return fault

    async def _harmed(self, fault: Fault, back: Writer, piece: bytes) -> bytes:
        """The piece as it goes on, if it does."""
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.kind == "cut":
            back.write(_chunk(piece)[: fault.byte % len(piece)])
            await back.drain()
            raise Broken
        elif fault.kind == "half":
            back.write_eof()
            await asyncio.Event().wait()
        elif fault.kind == "stall":
            await asyncio.Event().wait()
        elif fault.kind == "drip":
            while True:
                back.write(_chunk(COMMENT))
                await back.drain()
                await asyncio.sleep(0.02)
        elif fault.kind == "flip":
            at = fault.byte % len(piece)
            return piece[:at] + bytes([piece[at] ^ 1 << fault.bit % 8]) + piece[at + 1 :]
        elif fault.kind == "change":
            return fault.change(piece.decode()).encode()
        elif fault.kind == "lose":
            return b""
        elif fault.kind == "twice":
            return 2 * piece
        return piece


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0
