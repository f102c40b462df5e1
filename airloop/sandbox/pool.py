"""Sandboxes kept ready, so that an episode waits for none.

What many episodes took at once, twice in a row, is started ahead as soon as nobody asks for sandboxes any more: while a
trainer updates its model, processors have little to do, and the next step begins with sandboxes that stand ready.

A lease is a sandbox that somebody uses. It is never used twice: to go back to the beginning (or to a snapshot)
takes another fresh sandbox, and the old one is ended in the background. So a reset costs as much as taking a ready
sandbox, and nothing an agent did can reach the next episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from airloop.errors import InfraError
from airloop.sandbox.base import Backend, Image, Result, Sandbox, SandboxLost, Snapshot
from airloop.waits import waiting

log = logging.getLogger(__name__)

PING_S = 2.0  # for a ready sandbox to show that it lives
KINDS = 16  # images that ready sandboxes are kept of
STARTS = max(4, os.cpu_count() or 1)  # sandboxes started at one time
AHEAD = 4 * (os.cpu_count() or 1)  # ready sandboxes, of all images together, up to which some are started ahead
QUIET_S = 0.5  # in which nobody waits for a sandbox: the episodes have what they need
ATTEMPTS = 3  # to start a sandbox
LEASE_S = 120.0  # a sandbox starts in milliseconds to seconds; many at once wait for one another

Start = Image | Snapshot


class Pool:
    """`standby` sandboxes are kept ready for each of the images used last; with 0 of them none is ever started ahead.
    None is started ahead, either, where `most` are in use or ready: a bound that somebody has set for what the machine
    can hold. Everything has a deadline: a lease that is held longer than `deadline_s` is closed under its holder."""

    def __init__(
        self, backend: Backend, standby: int = 2, deadline_s: float = 4 * 3600.0, most: float = math.inf
    ) -> None:
        self.backend = backend
        self.standby = standby
        self.most = most
        self.deadline_s = deadline_s
        self.counts: Counter[str] = Counter()  # started, warm, cold, broken, closed, overdue
        self.leases: set[Lease] = set()
        self._ready: OrderedDict[Start, deque[Sandbox]] = OrderedDict()
        self._coming: Counter[Start] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = asyncio.Semaphore(STARTS)
        self._asked = 0  # sandboxes that somebody waits for
        self._wishes: Counter[Start] = Counter()  # for sandboxes of an image, since it was last quiet
        self._wishes_before: Counter[Start] = Counter()
        self._quiet: asyncio.TimerHandle | None = None
        self._closed = False

    async def lease(self, start: Start, deadline_s: float | None = None) -> Lease:
        with waiting("a sandbox", f"the {self.backend.name} pool", LEASE_S):
            sandbox = await self.take(start)
        lease = Lease(self, start, sandbox, deadline_s or self.deadline_s)
        self.leases.add(lease)
        return lease

    async def take(self, start: Start) -> Sandbox:
        """A fresh sandbox: a ready one if it still lives, else one started now."""
        if self._closed:
            raise InfraError("the pool of sandboxes is closed")
        with self._asking(start):
            ready = self._ready.setdefault(start, deque())
            self._ready.move_to_end(start)
            while ready:
                sandbox = ready.popleft()
                if await _lives(sandbox):
                    self.counts["warm"] += 1
                    self._refill(start)
                    return sandbox
                self.counts["broken"] += 1
                self.discard(sandbox)
            self.counts["cold"] += 1
            sandbox = await self._start(start)
            self._refill(start)
            return sandbox

    async def warm(self, start: Start, count: int | None = None) -> None:
        """Waits until sandboxes of this image stand ready."""
        ready = self._ready.setdefault(start, deque())
        missing = (self.standby if count is None else count) - len(ready)
        await asyncio.gather(*(self._add(start) for _ in range(missing)))

    def discard(self, sandbox: Sandbox) -> None:
        self._spawn(sandbox.close())
        self.counts["closed"] += 1

    async def close(self) -> None:
        self._closed = True
        if self._quiet is not None:
            self._quiet.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sandboxes = [sandbox for ready in self._ready.values() for sandbox in ready]
        await asyncio.gather(
            *(lease.close() for lease in list(self.leases)), *(sandbox.close() for sandbox in sandboxes)
        )
        self._ready.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.backend.close()

    def abandon(self) -> None:
        """Lets go of everything at once, without an event loop."""
        self._closed = True
        self.backend.abandon()

    async def _start(self, start: Start) -> Sandbox:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._starts:
                    sandbox = await self.backend.start(start)
                self.counts["started"] += 1
                return sandbox
            except InfraError as error:
                self.counts["broken"] += 1
                if attempt == ATTEMPTS or self._closed:
                    raise
                log.warning("a sandbox could not be started (%s); trying again", error)
                await asyncio.sleep(0.1 * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _refill(self, start: Start) -> None:
        ready = self._ready.setdefault(start, deque())  # it may have made room for others meanwhile
        while not self._closed and len(ready) + self._coming[start] < self.standby:
            self._spawn(self._add(start))
            self._coming[start] += 1
        while len(self._ready) > KINDS:
            _, old = self._ready.popitem(last=False)
            for sandbox in old:
                self.discard(sandbox)

    @contextlib.contextmanager
    def _asking(self, start: Start) -> Iterator[None]:
        self._wishes[start] += 1
        self._asked += 1
        if self._quiet is not None:
            self._quiet.cancel()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked and not self._closed:
                self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._start_ahead)

    def _start_ahead(self) -> None:
        """As many of an image as were wanted this time and the time before: what is wanted once may never be again."""
        wished, before = self._wishes, self._wishes_before
        self._wishes, self._wishes_before = Counter(), wished
        there = sum(map(len, self._ready.values())) + self._coming.total()
        room = min(AHEAD, self.most - len(self.leases)) - there
        for start in wished if self.standby and not self._closed else ():
            missing = min(wished[start], before[start]) - len(self._ready.get(start, ())) - self._coming[start]
            for _ in range(int(min(missing, room))):
                self._spawn(self._add(start))
                self._coming[start] += 1
                room -= 1

    async def _add(self, start: Start) -> None:
        try:
            sandbox = await self._start(start)
        except InfraError as error:
            log.warning("no sandbox could be kept ready: %s", error)  # whoever needs one tries again, and is told
            return
        finally:
            self._coming[start] -= self._coming[start] > 0
        if self._closed or start not in self._ready:
            await sandbox.close()
        else:
            self._ready[start].append(sandbox)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Lease:
    """A sandbox in use, and the way to get another in its place."""

    def __init__(self, pool: Pool, start: Start, sandbox: Sandbox, deadline_s: float) -> None:
        self._pool = pool
        self._start = start
        self.sandbox = sandbox
        self._overdue = False
        self._closed = False
        self._timer = asyncio.get_running_loop().call_later(deadline_s, self._expire)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, command: str, timeout: float) -> Result:
        return await self._unless_overdue(self.sandbox.run(command, timeout))

    async def python(self, source: str, given: bytes, timeout: float) -> Result:
        return await self._unless_overdue(self.sandbox.python(source, given, timeout))

    async def _unless_overdue(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await work
        except (InfraError, SandboxLost) as error:
            if self._overdue:
                raise InfraError("the sandbox was held longer than its deadline and was closed") from error
            raise

    async def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self.sandbox.put(path, content, mode)

    async def get(self, path: str, limit_bytes: int = 256 << 20) -> bytes | None:
        return await self.sandbox.get(path, limit_bytes)

    async def get_many(self, paths: Sequence[str], limit_bytes: int, total_bytes: int) -> list[bytes | None]:
        return await self.sandbox.get_many(paths, limit_bytes, total_bytes)

    async def list(self, pattern: str) -> list[str]:
        return await self.sandbox.list(pattern)

    async def snapshot(self) -> Snapshot:
        return await self.sandbox.snapshot()

    def frozen(self) -> AbstractAsyncContextManager[None]:
        return self.sandbox.frozen()

    async def restore(self, snapshot: Snapshot | None = None) -> None:
        """Back to a snapshot, or to the very beginning: with fresh processes, whatever happened."""
        if self._closed:
            raise InfraError("the lease is closed")
        fresh = await self._pool.take(snapshot or self._start)
        self._pool.discard(self.sandbox)
        self.sandbox = fresh

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._pool.leases.discard(self)
        self._pool.counts["closed"] += 1
        await self.sandbox.close()

    def _expire(self) -> None:
        self._overdue = True
        self._pool.counts["overdue"] += 1
        log.warning("a sandbox was held longer than its deadline; it is closed")
        self._pool.discard(self.sandbox)


async def _lives(sandbox: Sandbox) -> bool:
    with contextlib.suppress(InfraError, SandboxLost):
        result = await sandbox.run(":", PING_S)
        return result.exit_code == 0 and not result.timed_out and not result.shell_restarted
    return False
