"""How long work may take, and what is added: time in which the engine could serve nobody is no episode's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from airloop.engine.base import EngineDowntime
from airloop.errors import InfraError

T = TypeVar("T")
STUCK_S = 10.0  # from being told to stop until it is given up
LOOK_S = 0.05  # between two looks at whether more time has been added


class OutOfTime(Exception):
    pass


async def within(seconds: float, what: str, work: Coroutine[Any, Any, T], left: Callable[[], float] | None = None) -> T:
    """The result, or OutOfTime; InfraError if the work does not even stop when it is told to. `left`: how many seconds
    it still has, asked when these are over: time may have been added.

    Unlike asyncio.timeout this ends on time even when the work swallows its cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(seconds, 0.0))
        while left is not None and not task.done() and (more := left()) > 0:
            await asyncio.wait({task}, timeout=max(more, LOOK_S))
        in_time = task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=STUCK_S)
            if task.done() and not task.cancelled():
                task.exception()  # seen, so that asyncio does not report it as forgotten
    if not task.done():
        raise InfraError(f"{what} took more than {seconds:.0f} s and could not be stopped")
    if task.cancelled():
        if in_time:
            raise InfraError(f"{what} was cancelled from inside")
        raise OutOfTime(f"{what} took more than {seconds:.0f} s")
    return task.result()


def added_by(downtime: EngineDowntime | None) -> Callable[[], float]:
    """The seconds, from now on, in which the engine served nobody: they are added to an episode's own."""
    if downtime is None:
        return lambda: 0.0
    before = downtime.seconds
    return lambda: downtime.seconds - before
