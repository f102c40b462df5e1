"""What samplers and learner go by when they work side by side: the time of day, or a simulated one.

On the simulated clock only one of them moves at a time, in an order that follows from how long each is said to take.
So an asynchronous run is the same every time; and a fleet of hundreds is simulated in seconds by the code that runs it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

Turn = asyncio.Future[None]
Work = Coroutine[Any, Any, None]
Met = Callable[[], object]  # whether what is waited for has come


class Clock(Protocol):
    def start(self, work: Work) -> asyncio.Task[None]:
        """Beside whoever calls."""
        ...

    async def spend(self, seconds: float) -> None:
        """Simulated time; by the time of day, work takes as long as it takes."""
        ...

    async def until(self, met: Met) -> None:
        """Waits for something that another does, and tells of."""
        ...

    def tell(self) -> None:
        """Something has changed: whoever waits looks again."""
        ...

    def close(self) -> None: ...


class WallClock:
    """See Clock."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Met, Turn]] = []

    def start(self, work: Work) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    async def spend(self, seconds: float) -> None:
        return None

    async def until(self, met: Met) -> None:
        while not met():
            turn: Turn = asyncio.get_running_loop().create_future()
            self._waiting.append((met, turn))
            await turn

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for met, turn in waiting:
            if turn.done():  # whoever waited was told to stop
                continue
            if met():
                turn.set_result(None)
            else:
                self._waiting.append((met, turn))

    def close(self) -> None:
        return None


class SimulatedClock:
    """See Clock. Made by the first of those who go by it, whose turn it is.

    Whoever is on turn may await anything real, the engine or an environment: time stands still meanwhile, and nobody
    else moves. The turn passes on when it is spent, waits or ends.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: deque[Turn] = deque()
        self._asleep: list[tuple[float, int, Turn]] = []
        self._waiting: list[tuple[Met, Turn]] = []
        self._order = itertools.count()  # of those who wake at one time: as they went to sleep
        self._closed = False

    def start(self, work: Work) -> asyncio.Task[None]:
        turn: Turn = asyncio.get_running_loop().create_future()
        self._ready.append(turn)
        return asyncio.ensure_future(self._play(turn, work))

    async def _play(self, turn: Turn, work: Work) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            work.close()
            raise
        try:
            await work
        finally:
            self._pass_on()

    async def spend(self, seconds: float) -> None:
        turn: Turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self.now + seconds, next(self._order), turn))
        self._pass_on()
        await turn

    async def until(self, met: Met) -> None:
        while not met():
            turn: Turn = asyncio.get_running_loop().create_future()
            self._waiting.append((met, turn))
            self._pass_on()
            await turn

    def tell(self) -> None:
        self._ready.extend(turn for met, turn in self._waiting if met())
        self._waiting = [(met, turn) for met, turn in self._waiting if not met()]

    def close(self) -> None:
        """Nobody is called any more: those who are still there are about to be cancelled."""
        self._closed = True

    def _pass_on(self) -> None:
        if self._closed:
            return
        if self._ready:
            self._ready.popleft().set_result(None)
        elif self._asleep:
            self.now, _, turn = heapq.heappop(self._asleep)
            turn.set_result(None)
        elif self._waiting:
            self._waiting.pop()[1].set_exception(RuntimeError("all wait for each other, and nobody has anything to do"))
