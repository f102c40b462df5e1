"""Decoding steps as CUDA graphs: one launch instead of hundreds. Captured when a batch size is first met."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from airloop.limits import graph_sizes


class Graphs:
    """Graphs of `step(rows, truncated)` for views of `rows`. They share one memory pool: two never run at once."""

    def __init__(self, step: Callable[[Tensor, bool], None], rows: Tensor, most: int) -> None:
        self._step = step
        self._rows = rows
        self._sizes = graph_sizes(most)
        self._graphs: dict[tuple[int, bool], Any] = {}
        self._pool: Any = None
        self.bytes = 0
        self.seconds = 0.0

    def size(self, count: int) -> int:
        """The captured size that holds `count` rows."""
        return next(n for n in self._sizes if n >= count)

    def prepare(self, size: int, truncated: bool) -> None:
        """Capture it if need be. Not between the steps of a burst: the rehearsal draws too, for nobody."""
        if (size, truncated) not in self._graphs:
            self._graphs[size, truncated] = self._capture(size, truncated)

    def replay(self, size: int, truncated: bool) -> None:
        self._graphs[size, truncated].replay()

    def describe(self) -> str:
        sizes = ", ".join(str(n) for n, _ in sorted(self._graphs)) or "none yet"
        return f"batches of {sizes}; {self.bytes / 2**20:.0f} MiB, captured in {self.seconds:.1f} s"

    def _capture(self, size: int, truncated: bool) -> Any:
        began = time.perf_counter()
        device = self._rows.device
        # A rehearsal compiles kernels and fills caches; every row is nobody's, so that nothing is drawn for anyone.
        self._rows[:size].fill_(len(self._rows))
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._step(self._rows[:size], truncated)
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        free, _ = torch.cuda.mem_get_info(device)
        graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"),
        ):
            self._step(self._rows[:size], truncated)
        self._pool = self._pool or graph.pool()
        self.bytes += max(0, free - torch.cuda.mem_get_info(device)[0])
        self.seconds += time.perf_counter() - began
        return graph


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The cyclic collector may come upon a graph that nobody needs any more, of an engine before this one. To destroy
    one while another is captured is not permitted, and spoils the capture (torch before 2.9 collected beforehand)."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
