"""One thread looks at the directory, keeps the index, and tells every open page what has changed.

However many pages are open, the directory is looked at once. Looking costs at most a tenth of a core: the larger the
directory, the longer the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from airloop import locks
from airloop_view.index import Index

PAUSE_S = 0.5
SHARE = 10.0  # pause this many times as long as the look took
LONGEST_PAUSE_S = 30.0
SECOND = 1.0  # between two messages to one page
HEARTBEAT_S = 15.0
MOST_LISTENERS = 64

logger = logging.getLogger("airloop.view")


class FolderWatcher:
    def __init__(self, index: Index) -> None:
        self._index = index
        index.tell = self._tell
        self._thread = threading.Thread(target=self._run, name="air-view-watch", daemon=True)
        self._listeners: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event, set[str]]] = {}
        self._guard = threading.Lock()
        self._duty: IO[str] | None = None
        self._seen_version = 0
        self.looked_once = threading.Event()
        self.problem = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._index.stopping.set()
        self.release()
        self._thread.join(timeout=10.0)
        self._index.parser.close()
        if self._duty is not None:
            self._duty.close()

    def release(self) -> None:
        """Wakes every listener, so that it can see that this is over."""
        with self._guard:
            for loop, event, _ in self._listeners.values():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def _run(self) -> None:
        while not self._index.stopping.is_set():
            began = time.monotonic()
            try:
                changed = self._index.update() if self._on_duty() else self._others_work()
                self.problem = ""
                self.looked_once.set()
                if changed:
                    self._tell(changed)
            except Exception as error:  # whatever one file does to us, the others are still followed
                problem = f"The index cannot be kept up to date: {error}."
                if not self._index.stopping.is_set() and problem != self.problem:  # said once, not at every look
                    self.problem = problem
                    logger.warning(problem, exc_info=not isinstance(error, OSError | sqlite3.Error))
                self.looked_once.set()
            took = time.monotonic() - began
            self._index.stopping.wait(min(LONGEST_PAUSE_S, max(PAUSE_S, SHARE * took)))

    def _on_duty(self) -> bool:
        """Of several viewers of one directory, the first keeps the index; another takes over when that one ends."""
        if self._duty is None:
            handle = Path(f"{self._index.store.path}.lock").open("w")  # noqa: SIM115 - held for as long as we serve
            with contextlib.suppress(OSError):  # a file system without locks: nobody is on duty there
                if locks.take(handle):
                    self._duty = handle
                    return True
            handle.close()
            return False
        return True

    def _others_work(self) -> set[str]:
        version = int(self._index.store.writer.execute("PRAGMA data_version").fetchone()[0])
        changed, self._seen_version = version != self._seen_version, version
        if not changed:
            return self._index.changed_files()
        return {row[0] for row in self._index.store.writer.execute("SELECT id FROM collections")}

    def _tell(self, changed: set[str]) -> None:
        with self._guard:
            for loop, event, waiting in self._listeners.values():
                waiting |= changed
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def full(self) -> bool:
        return len(self._listeners) >= MOST_LISTENERS

    async def changes(self) -> AsyncIterator[list[str] | None]:
        """For one page: the ids of what has changed, at most once a second; None as a sign of life."""
        event, waiting = asyncio.Event(), set[str]()
        number = id(event)
        with self._guard:
            self._listeners[number] = (asyncio.get_running_loop(), event, waiting)
        try:
            yield None
            while not self._index.stopping.is_set():
                try:
                    await asyncio.wait_for(event.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield None
                    continue
                with self._guard:
                    event.clear()
                    found = sorted(waiting)
                    waiting.clear()
                if found:
                    yield found
                    await asyncio.sleep(SECOND)
        finally:
            with self._guard:
                del self._listeners[number]
