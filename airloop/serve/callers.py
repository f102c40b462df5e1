"""Connections: how many there may be, how long one may take, and what is said of those that are refused.

uvicorn waits for ever for the end of a request's head, and takes connections until the system has no file left to
give; then its loop writes a traceback for every one that it cannot take. So a caller has a deadline, there is a bound
for all and one for each address, and whoever has asked for nothing yet makes room for whoever comes: a crowd that only
holds the line keeps nobody out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import h11

from airloop.serve.waiting import CALLER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airloop.serve.by_h11 import Connection
else:
    try:
        from airloop.serve.by_httptools import Connection
    except ImportError:
        from airloop.serve.by_h11 import Connection

PATIENCE_S = 10.0  # for a request's head to come once it has begun, and for any byte of an answer to be taken
MOST = 256  # connections, fewer where the system gives a process few files
MOST_AGENTS = 4096  # likewise, of agents
WAITING = 32  # that the system may hold for us, and that are taken in one go before any is looked at
UNREAD = 64 << 20  # bytes that are let by of a request that was answered before it was whole: so it hears why
MINUTE_S = 60.0
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# What goes wrong when the other side hangs up, or when we do.
GONE = (OSError, EOFError, h11.ProtocolError, asyncio.CancelledError)

logger = logging.getLogger("airloop.serve")


def most_connections(most: int = MOST) -> int:
    """A quarter of the files that this process may have open: what it works on, and a burst, need the others."""
    try:
        import resource  # not on Windows
    except ImportError:
        return most
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(16, min(most, soft // 4))


class Gathering:
    """A transport that sends together what is written together: uvicorn writes the head of an answer and its body one
    after the other, and each would cost a call of the system and a packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if data and not self._held:
            self._loop.call_soon(self.flush)  # of a stream, whose end comes later
        if data:
            self._held.append(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._held = []
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Caller(Connection):
    """One connection."""

    transport: Gathering  # type: ignore[assignment]

    _began = 0.0
    _left = 0  # bytes of an answer that were not taken yet when we last looked
    _looking: asyncio.TimerHandle | None = None
    _due = 0.0  # when we look again
    _refused = False
    _unread = 0  # bytes
    lost = False
    share = 0.5  # of all connections, that one address may have

    def most(self) -> int:
        return most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = Gathering(transport, self.loop)
        self.bells: set[Callable[[], object]] = set()  # of answers that end where this connection does
        self.app_state = {**self.app_state, CALLER: self}
        self._began = self.loop.time()
        if self._make_room():
            self._look_later()
            return
        self._refused = True
        self.crowded()
        self.connections.discard(self)
        transport.write(BUSY)
        transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._rests:
            self._due = self.loop.time() + PATIENCE_S  # a head begins
        if self.cycle is not None and self.cycle.response_complete and self.half_read:
            self._unread += len(data)
            if self._unread > UNREAD:
                self.hang_up()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.transport.flush()
        super().on_response_complete()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for ring in tuple(self.bells):
            ring()
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def tell_when_lost(self, told: Callable[[], object]) -> None:
        """Until it is taken out of `bells`. A large body has stopped the reading, and a line that is not read from is
        not heard to be hung up."""
        self.bells.add(told)
        self.flow.resume_reading()
        if self.lost:
            told()

    @property
    def _rests(self) -> bool:
        """Between two requests, with nothing of the next one here: uvicorn hangs up when its own time is over."""
        return self.timeout_keep_alive_task is not None

    @property
    def waits(self) -> bool:
        """For its request, or for its next one: nothing is lost if it is hung up on."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.transport.get_write_buffer_size()

    def _make_room(self) -> bool:
        """False if this one is too many, and nobody else can be asked to leave."""
        most = self.most()
        here = self.client and self.client[0]
        everyone = [c for c in self.connections if isinstance(c, Caller)]
        near = [c for c in everyone if (c.client and c.client[0]) == here]
        for crowd, bound in ((near, max(int(most * self.share), 8)), (everyone, most)):
            if sum(c in self.connections for c in crowd) > bound and not self._send_away(crowd):
                return False
        return True

    def _send_away(self, crowd: Iterable[Caller]) -> bool:
        """Hangs up on the one that has waited longest."""
        waiting = [c for c in crowd if c is not self and c in self.connections and c.waits]
        once_a_minute.say("Too many connections: those that ask for nothing are closed, and others may be refused.")
        if not waiting:
            return False
        min(waiting, key=lambda caller: caller._began).hang_up()
        self.crowded()
        return True

    def crowded(self) -> None:
        """There was no room for this one, or for another that had to leave."""

    def hang_up(self) -> None:
        self.connections.discard(self)  # at once: whoever comes next counts
        self.transport.abort()

    def _look_later(self) -> None:
        """One timer for all answers of a connection: it is put off when it is due, and not made anew for each."""
        self._left = self.transport.get_write_buffer_size()
        self._due = self.loop.time() + PATIENCE_S
        if self._looking is None:
            self._looking = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """An answer that is being made, or taken byte by byte, goes on; a half-sent request and an answer that nobody
        takes end here."""
        self._looking = None
        if self.loop.time() < self._due:
            self._looking = self.loop.call_at(self._due, self._look)
            return
        left = self.transport.get_write_buffer_size()
        if (self.waits and not self._rests) or (left and left >= self._left > 0):
            self.hang_up()
        else:
            self._look_later()


class AgentCaller(Caller):
    """One connection of an agent: hundreds come from one address, and none of them is a stranger."""

    share = 1.0

    def most(self) -> int:
        return most_connections(MOST_AGENTS)


class OnceAMinute(logging.Filter):
    """Lets each sentence through once a minute, and no traceback about callers that went away: they can have as many
    of them as they like, and the log is somebody's disk."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, GONE):
            record.exc_info = record.exc_text = None
            record.msg, record.args = f"{str(record.msg).splitlines()[0]}: {error!r}"[:300], ()
        return self._is_new(f"{str(record.msg).partition(chr(10))[0]} {type(error).__name__}")

    def say(self, sentence: str) -> None:
        if self._is_new(sentence):
            logger.warning(sentence)

    def _is_new(self, sentence: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(sentence, -MINUTE_S) < MINUTE_S:
            return False
        if len(self._said) >= 100:
            self._said.clear()
        self._said[sentence] = now
        return True


once_a_minute = OnceAMinute()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """While a server runs. asyncio speaks of connections that it could not take."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for each in loggers:
        each.addFilter(once_a_minute)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(once_a_minute)
