"""What is said while many episodes are indexed, where no terminal shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from airloop.watch.display.heartbeat import Heartbeat
from airloop.watch.display.phase import Phase
from airloop_view.index import Progress


@contextmanager
def told(progress: Progress) -> Iterator[None]:
    if sys.stderr.isatty():
        yield
        return
    heartbeat = Heartbeat(Indexing(progress).phase, lambda text: print(text, file=sys.stderr, flush=True)).start()
    try:
        yield
    finally:
        heartbeat.stop()


class Indexing:
    """The index's progress as a phase; none while nothing is left to be read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._phase: Phase | None = None

    def phase(self) -> Phase | None:
        done, total = self._progress.done, self._progress.total
        if done >= total:
            self._phase = None
        elif self._phase is None or self._phase.total != total:
            self._phase = Phase("indexing episodes", total)
        if self._phase and done > self._phase.done:
            self._phase.done, self._phase.moved = done, time.monotonic()
        return self._phase
