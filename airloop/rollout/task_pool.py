"""Runs coroutines side by side, a limited number at once, in the order they were added."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

Work = Callable[[], Coroutine[Any, Any, None]]


@runtime_checkable
class Tracks(Protocol):
    """An engine that can run in lock-step: it then takes a step only when every tracked episode waits inside
    generate(), so what is in a batch does not depend on how fast anybody was."""

    def track(self) -> AbstractContextManager[Any]: ...


class TaskPool:
    """At most `limit` pieces of work run at once; more may be added while it runs. The first failure stops
    the others and is raised.

    Each piece is tracked from before it starts until after it ends; the one that takes its place is tracked
    before it leaves, so a lock-step engine never sees a gap and steps without the newcomer.
    """

    def __init__(self, limit: int, engine: object = None) -> None:
        self._limit = limit
        self._track = engine.track if isinstance(engine, Tracks) else nullcontext
        self._waiting: deque[Work] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None

    def add(self, work: Work) -> None:
        """Work added by running work starts when that has ended, if there is room for it."""
        self._waiting.append(work)

    async def run(self) -> None:
        self._over = asyncio.get_running_loop().create_future()
        self._fill()
        if not self._running:
            return
        try:
            await self._over
        finally:
            self._waiting.clear()
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            tracking = self._track()
            tracking.__enter__()
            task = asyncio.ensure_future(self._waiting.popleft()())
            self._running.add(task)
            task.add_done_callback(partial(self._ended, tracking))

    def _ended(self, tracking: AbstractContextManager[Any], task: asyncio.Task[None]) -> None:
        assert self._over is not None
        self._running.discard(task)
        failure = RuntimeError("cancelled from inside") if task.cancelled() else task.exception()
        if failure is not None:
            self._waiting.clear()
            if not self._over.done():  # after that, the others are stopped, and how they end is no news
                self._over.set_exception(failure)
        self._fill()
        tracking.__exit__(None, None, None)
        if not self._running and not self._over.done():
            self._over.set_result(None)
