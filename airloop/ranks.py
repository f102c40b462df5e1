"""The processes that train together: how many there are, which one this is, and how they meet.

One process is all ranks there are: it never waits and never imports torch.distributed, so the same code runs for one
rank and for eight. Between ranks there are two kinds of waits, each with a deadline and a reason:

- *barriers*, where one rank may be minutes behind another because it sampled other episodes. They poll a store and
  give way to the event loop, so Ctrl-C is heard and the engine goes on;
- *collectives*, which begin when all are known to be there or soon will be, and block.

A rank that dies breaks its neighbours' collectives and is seen by the process that started them (launch/monitor.py).
So is one that lives and does not come (launch/stillness.py): deadlines here are for what that process cannot see.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airloop.errors import AirError
from airloop.waits import COMPUTING, RANKS, WAITS, waiting

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")

# In the environment of a rank, which sees its own GPU only: CUDA_VISIBLE_DEVICES of who started it.
ALL_GPUS = "AIR_ALL_GPUS"

# A rank that others wait for, and that has made no progress for so long, is lost. One that goes on, however slowly, is
# waited for.
MEET_S = 1800.0
# Between ranks that do the same work on the same machine: they share an update's tokens evenly and are slow together.
# What trainer.rank_timeout_s is by default.
COLLECTIVE_S = 1800.0
# Ranks end together: so long the one that keeps the store waits for the others to have left it.
LEAVE_S = 60.0
# How often a rank that makes progress shows it to the others.
HEARTBEAT_S = 10.0
# Pauses between two looks at the store: short at first, as ranks that did the same work arrive together.
PAUSES_S = (0.001, 0.05)
# Gradients are summed in pieces of this size, so that a copy of all of them is never needed.
BUCKET_BYTES = 64 << 20


class RankLost(AirError):
    """Another rank is gone or late. The cause is with that rank; this one only noticed."""


class Ranks:
    """One process: it is the first rank, has all of the work, and nobody to wait for."""

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes what a run has one of: metrics, checkpoints, status."""
        return self.rank == 0

    def my_share(self, items: Sequence[T]) -> list[T]:
        """This rank's share: every size-th item. The shares of all ranks are all items, each once."""
        return list(items[self.rank :: self.size])

    async def barrier(self, what: str, deadline_s: float | None = None) -> None:
        """Returns once every rank has come to it. All ranks come to the same barriers in the same order."""

    async def all_gather(self, value: T, what: str, deadline_s: float | None = None) -> list[T]:
        """Every rank's value, by rank, on every rank; for values that ranks reach at different times."""
        return [value]

    def all_gather_now(self, value: T, what: str) -> list[T]:
        """The same, blocking: inside an update, where all ranks do the same thing at the same time."""
        return [value]

    def all_reduce(self, tensors: Sequence[Tensor], what: str) -> None:
        """Replace each tensor by its sum over ranks; the same bits on every rank."""

    def close(self) -> None: ...


class DistributedRanks(Ranks):
    """One of several processes. `folder` is one that all of them can reach. `address`: host:port of a store that the
    first of them keeps; without, they are on one machine, and the store is a file in that folder."""

    def __init__(
        self, rank: int, size: int, folder: Path, device: str, address: str = "", timeout_s: float = COLLECTIVE_S
    ) -> None:
        """`timeout_s`: for one that neither moves nor computes. One that computes has several times as long."""
        import torch.distributed as dist

        self.rank = rank
        self.size = size
        self._meetings = 0
        self._heartbeats = Heartbeats(folder, rank)
        self._keeps_store = bool(address) and rank == 0
        self._longest_s = (COMPUTING + 1) * timeout_s
        wait = datetime.timedelta(seconds=self._longest_s)
        with collective("meeting the others at the start"):
            self._store = _store_at(address, rank, size) if address else dist.FileStore(str(folder / "store"), size)
            group_store = dist.PrefixStore("group", self._store)
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo", store=group_store, rank=rank, world_size=size, timeout=wait
            )
            # Python objects travel through the CPU, also where tensors travel between GPUs.
            self._objects = dist.new_group(backend="gloo", timeout=wait) if device == "cuda" else None

    async def barrier(self, what: str, deadline_s: float | None = None) -> None:
        self._meetings += 1
        self._store.set(self._key(self.rank), "")
        with waiting(what, RANKS, deadline_s or MEET_S):
            await self._all_here(what, deadline_s or self._longest_s)

    async def _all_here(self, what: str, deadline_s: float) -> None:
        began, pause = time.monotonic(), PAUSES_S[0]
        while missing := [r for r in range(self.size) if not self._here(r)]:
            waited = time.monotonic() - began
            if min(waited, self._heartbeats.seconds_still(missing[0])) > deadline_s:
                raise RankLost(
                    f"Rank {self.rank} waited {waited:.0f} s for rank {missing[0]} at: {what}. "
                    f"That rank has made no progress for {deadline_s:.0f} s.",
                    "look in log.txt for what that rank did last; go on with `air train --resume RUN`.",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSES_S[1])

    async def all_gather(self, value: T, what: str, deadline_s: float | None = None) -> list[T]:
        await self.barrier(what, deadline_s)
        return self.all_gather_now(value, what)

    def all_gather_now(self, value: T, what: str) -> list[T]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        with collective(what):
            dist.all_gather_object(found, value, group=self._objects)
        return found

    def all_reduce(self, tensors: Sequence[Tensor], what: str) -> None:
        import torch
        import torch.distributed as dist

        for bucket in _buckets(tensors):
            flat = torch.cat([t.detach().reshape(-1) for t in bucket])
            with collective(what):
                dist.all_reduce(flat)
                if flat.is_cuda:  # NCCL only enqueues: a rank that does not come is to be waited for here, by name
                    torch.cuda.current_stream().synchronize()
            for tensor, total in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.detach().copy_(total.view_as(tensor))

    def close(self) -> None:
        import torch.distributed as dist

        self._heartbeats.stop()
        self._leave()
        dist.destroy_process_group()

    def _leave(self) -> None:
        """A rank that has come to the last meeting may not have seen yet that all have: whoever keeps the store goes
        last."""
        with naming_losses("the end of the run"):
            self._store.set(f"left/{self.rank}", "")
            until = time.monotonic() + LEAVE_S
            left = [f"left/{rank}" for rank in range(self.size)]
            while self._keeps_store and not self._store.check(left) and time.monotonic() < until:
                time.sleep(PAUSES_S[1])

    def _key(self, rank: int) -> str:
        return f"meeting/{self._meetings}/{rank}"

    def _here(self, rank: int) -> bool:
        with naming_losses("a meeting of all ranks"):
            return bool(self._store.check([self._key(rank)]))


class Heartbeats:
    """Files that ranks touch while something begins, ends or makes progress in them: a running thread alone is no proof
    of progress. How long one has been still is counted from when its file was last seen to change, so that
    clocks of several machines need not agree."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._seen: dict[int, tuple[float, float]] = {}  # by rank: its file's time, and when we saw that
        self._end = threading.Event()
        threading.Thread(target=self._beat, name="air-pulse", daemon=True).start()

    def seconds_still(self, rank: int) -> float:
        """Seconds since that rank was last seen to make progress, or was first checked."""
        last, now = self.last(rank), time.monotonic()
        if rank not in self._seen or self._seen[rank][0] != last:
            self._seen[rank] = (last, now)
        return now - self._seen[rank][1]

    def last(self, rank: int) -> float:
        """When that rank last made progress; 0 if it never did."""
        try:
            return self._file(rank).stat().st_mtime
        except OSError:
            return 0.0

    def stop(self) -> None:
        self._end.set()

    def _file(self, rank: int) -> Path:
        return self._folder / f"pulse-{rank}"

    def _beat(self) -> None:
        seen = 0.0
        while not self._end.wait(HEARTBEAT_S):
            moved = WAITS.moved
            if moved != seen:
                seen = moved
                with contextlib.suppress(OSError):  # the run is being ended, and the folder with it
                    self._file(self._rank).touch()


def _store_at(address: str, rank: int, size: int) -> Store:
    """The first rank keeps it; the others wait until it is there."""
    import torch.distributed as dist

    host, _, port = address.rpartition(":")
    wait = datetime.timedelta(seconds=MEET_S)
    return dist.TCPStore(host, int(port), size, rank == 0, wait, wait_for_workers=False)


@contextlib.contextmanager
def naming_losses(what: str) -> Iterator[None]:
    """torch reports a lost neighbour as a broken connection: say which work it broke."""
    from torch import OutOfMemoryError

    try:
        yield
    except OutOfMemoryError:
        raise
    except RuntimeError as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RankLost(
            f"The other ranks could not be reached for {what}: {first}",
            "look in log.txt for the rank that ended first; go on with `air train --resume RUN`.",
        ) from error


@contextlib.contextmanager
def collective(what: str) -> Iterator[None]:
    """Around what begins when all ranks have come to it."""
    with waiting(what, RANKS, COLLECTIVE_S), naming_losses(what):
        yield


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, together about BUCKET_BYTES."""
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if bucket and (held + size > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += size
    if bucket:
        yield bucket
