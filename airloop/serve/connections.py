"""Connections with limits: how many there may be, how long one may take, and how often refusals are logged.

uvicorn waits for ever for the end of a request's head, and accepts connections until the process has no file descriptor
left; then its loop logs a traceback for every one that it cannot accept. So a connection has a timeout, there is a
limit for all and one for each address, and an idle connection is closed for a new one: idle connections cannot keep
others out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h11

from airloop.serve.cancellation import CONNECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airloop.serve.by_h11 import Connection
else:
    try:
        from airloop.serve.by_httptools import Connection
    except ImportError:
        from airloop.serve.by_h11 import Connection

TIMEOUT_S = 10.0  # for a request's head to arrive once it has begun, and for the client to read any byte of an answer
MAX_CONNECTIONS = 256  # connections, fewer where the system gives a process few files
MAX_AGENT_CONNECTIONS = 4096  # likewise, of agents
BACKLOG = 32  # connections that the system queues, and that are accepted in one go before any is served
UNREAD_LIMIT = 64 << 20  # bytes skipped of a request that was answered before its end: so the client reads the answer
MINUTE_S = 60.0
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# Errors of a connection that either side has closed.
DISCONNECT_ERRORS = (OSError, EOFError, h11.ProtocolError, asyncio.CancelledError)

logger = logging.getLogger("airloop.serve")


def most_connections(limit: int = MAX_CONNECTIONS) -> int:
    """At most a quarter of the files that this process may have open: the rest is for its own files, and for bursts."""
    try:
        import resource  # not on Windows
    except ImportError:
        return limit
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft == resource.RLIM_INFINITY else max(16, min(limit, soft // 4))


class BufferedTransport:
    """A transport that joins writes of one turn of the event loop: uvicorn writes the head of an answer and its body
    one after the other, and each would cost a system call and a packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._buffer: list[bytes] = []
        self._written = 0  # bytes

    def write(self, data: bytes) -> None:
        if data and not self._buffer:
            self._loop.call_soon(self.flush)  # of a stream, whose end comes later
        if data:
            self._buffer.append(data)
            self._written += len(data)

    def flush(self) -> None:
        if self._buffer:
            buffer, self._buffer = self._buffer, []
            self._transport.write(b"".join(buffer))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._buffer = []
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._buffer))

    def sent(self) -> int:
        """Bytes that have left this machine, or its process where the system does not say what it holds."""
        return self._written - self.get_write_buffer_size() - _held_by_system(self._transport)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _held_by_system(transport: asyncio.Transport) -> int:
    """Bytes that the client has not acknowledged. Without them a slow client would seem to take nothing for as long as
    it needs for a third of the system's buffer: only then is there room for more."""
    if sys.platform != "linux":
        return 0
    import fcntl  # not on Windows
    import termios

    with contextlib.suppress(OSError, ValueError):  # it is closed
        asked = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", asked)[0])
    return 0


class LimitedConnection(Connection):
    """One connection, with a timeout, within the limits on their number."""

    transport: BufferedTransport  # type: ignore[assignment]

    _began = 0.0
    _unsent = 0  # bytes of an answer that were not sent yet at the last check
    _sent = 0  # bytes of all answers that were sent by then, if some were not
    _check_timer: asyncio.TimerHandle | None = None
    _check_at = 0.0  # time of the next check
    _refused = False
    _excess = False  # one too many: it stays until it is known whose request it is that is refused
    _unread = 0  # bytes
    lost = False
    owner = ""  # who has asked by it, where the application says so
    share = 0.5  # of all connections, that one address may have
    spare = 0.0  # of that limit, how many more may ask, to be refused by the application

    def limit(self) -> int:
        return most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = BufferedTransport(transport, self.loop)
        self.disconnect_callbacks: set[Callable[[], object]] = set()  # of answers that end where this connection does
        self.app_state = {**self.app_state, CONNECTION: self}
        self._began = self.loop.time()
        self._excess = not self._make_room()
        if not self._excess or self._room_to_refuse():
            self._schedule_check()
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
            self._check_at = self.loop.time() + TIMEOUT_S  # a head begins
        if self.cycle is not None and self.cycle.response_complete and self.half_read:
            self._unread += len(data)
            if self._unread > UNREAD_LIMIT:
                self.drop()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.transport.flush()
        if self._excess:
            self.transport.close()
        super().on_response_complete()
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for callback in tuple(self.disconnect_callbacks):
            callback()
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Calls back when the client disconnects, until removed from `disconnect_callbacks`. A large body has paused
        reading, and a disconnect is only noticed while the connection is read."""
        self.disconnect_callbacks.add(callback)
        self.flow.resume_reading()
        if self.lost:
            callback()

    @property
    def _rests(self) -> bool:
        """Between two requests, with nothing of the next one received: uvicorn closes it when its own time is over."""
        return self.timeout_keep_alive_task is not None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request: then closing it loses nothing."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.transport.get_write_buffer_size()

    def _make_room(self) -> bool:
        """False if this one is too many, and no idle one can be closed for it."""
        limit = self.limit()
        here = self.client and self.client[0]
        ours = (c for c in self.connections if isinstance(c, LimitedConnection))
        all_connections = [c for c in ours if c is self or not c._excess]
        same_address = [c for c in all_connections if (c.client and c.client[0]) == here]
        for group, bound in ((same_address, max(int(limit * self.share), 8)), (all_connections, limit)):
            if sum(c in self.connections for c in group) > bound and not self._drop_oldest_idle(group):
                return False
        return True

    def _room_to_refuse(self) -> bool:
        """False if there are too many even of those that are too many."""
        excess = [c for c in self.connections if isinstance(c, LimitedConnection) and c._excess]
        return len(excess) <= int(self.limit() * self.spare) or self._drop_oldest_idle(excess)

    def has_room(self) -> bool:
        """Whether its request may be answered. Of one connection too many that is known when its request has been
        read: others may have gone by then."""
        if self._excess:
            self._excess = not self._make_room()
        return not self._excess

    def _drop_oldest_idle(self, group: Iterable[LimitedConnection]) -> bool:
        """Closes the connection that has been idle longest."""
        waiting = [c for c in group if c is not self and c in self.connections and c.is_idle]
        rate_limited_log.say("Too many connections: those that ask for nothing are closed, and others may be refused.")
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection._began)
        oldest.drop()
        self.crowded(oldest.owner)
        return True

    def crowded(self, owner: str = "") -> None:
        """Called when a connection was closed for another, or refused unread, with whose it was, if that is known."""

    def drop(self) -> None:
        self.connections.discard(self)  # at once: the next connection counts those that are left
        self.transport.abort()

    def _schedule_check(self) -> None:
        """One timer for all answers of a connection: it is postponed when it fires, not made anew for each."""
        self._unsent = self.transport.get_write_buffer_size()
        self._sent = self.transport.sent() if self._unsent else 0
        self._check_at = self.loop.time() + TIMEOUT_S
        if self._check_timer is None:
            self._check_timer = self.loop.call_at(self._check_at, self._check)

    def _check(self) -> None:
        """Closes the connection after half a request, or when the client reads nothing of its answer; an answer that is
        being made, or read slowly, goes on. What was sent tells: the size of what is unsent stays the same where an
        answer is made as slowly as it is read."""
        self._check_timer = None
        if self.loop.time() < self._check_at:
            self._check_timer = self.loop.call_at(self._check_at, self._check)
            return
        unread = self._unsent and self.transport.get_write_buffer_size() and self.transport.sent() == self._sent
        if (self.is_idle and not self._rests) or unread:
            self.drop()
        else:
            self._schedule_check()


class AgentConnection(LimitedConnection):
    """A connection of an agent: hundreds come from one address, and all of them are trusted."""

    share = 1.0
    spare = 0.25

    def limit(self) -> int:
        return most_connections(MAX_AGENT_CONNECTIONS)


class RateLimitedLog(logging.Filter):
    """Logs each sentence once a minute, and no traceback about clients that disconnected: clients could otherwise fill
    the disk with log lines."""

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, DISCONNECT_ERRORS):
            record.exc_info = record.exc_text = None
            record.msg, record.args = f"{str(record.msg).splitlines()[0]}: {error!r}"[:300], ()
        return self._is_new(f"{str(record.msg).partition(chr(10))[0]} {type(error).__name__}")

    def say(self, sentence: str) -> None:
        if self._is_new(sentence):
            logger.warning(sentence)

    def _is_new(self, sentence: str) -> bool:
        now = time.monotonic()
        if now - self._last_logged.get(sentence, -MINUTE_S) < MINUTE_S:
            return False
        if len(self._last_logged) >= 100:
            self._last_logged.clear()
        self._last_logged[sentence] = now
        return True


rate_limited_log = RateLimitedLog()


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Limits the logs while a server runs: asyncio logs each connection that it could not accept."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for each in loggers:
        each.addFilter(rate_limited_log)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(rate_limited_log)
