"""Samples beside the learner: admits groups as the queue allows and slots are free, and hands over those of an update.

Every group that was admitted is handed over exactly once, in the order of admission.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from airloop.clocks import Clock, Work
from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected

# Samples a group; its episodes take the producer's slots.
Sample = Callable[["Producer", Admitted], Awaitable[Collected]]


class Producer:
    """`slots`: episodes under way at once, of all groups together, each of which has `rollouts`. `steps`: how many the
    run is to have, asked anew each time. `note` hears of a group before anything of it is sampled."""

    def __init__(
        self,
        queue: AdmissionQueue,
        sample: Sample,
        clock: Clock,
        *,
        slots: int,
        rollouts: int,
        steps: Callable[[], int],
        note: Callable[[Admitted], None] = lambda admitted: None,
    ) -> None:
        self.queue, self.clock = queue, clock
        self._sample, self._note, self._steps = sample, note, steps
        self._slots, self._rollouts = slots, rollouts
        self._taken = 0
        self._left: dict[int, int] = {}  # of each group under way, episodes that have not ended
        self._busy = 0  # of all groups
        self._held, self._counted = 0.0, time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """With the groups that the queue has already: a killed run had admitted them."""
        for admitted in self.queue.pending:
            self._begin(admitted)
        self._keep(self._admit())

    async def take(self) -> list[Admitted]:
        """The groups of the next update, when the last of them has ended. What ended the sampling is raised here."""
        await self.clock.until(lambda: self._failure or self.queue.ready)
        if self._failure is not None:
            raise self._failure
        return self.queue.take()

    def held_s(self) -> float:
        """Seconds, by the time of day, that slots were empty because the bound lets nothing begin: as if all had been,
        so that half of them for two seconds are one."""
        now = time.monotonic()
        if self.queue.at_bound:
            self._held += (now - self._counted) * max(0.0, 1 - self._busy / self._slots)
        self._counted = now
        return self._held

    def trained(self) -> None:
        """The update is made and served."""
        self.held_s()
        self.queue.trained()
        self.clock.tell()

    def refused(self) -> None:
        self.queue.refused()
        self.clock.tell()

    @contextlib.asynccontextmanager
    async def episode_slot(self, number: int) -> AsyncIterator[None]:
        """For one episode of a group, retries included."""
        await self.clock.until(lambda: self._taken < self._slots)
        self._taken += 1
        try:
            yield
        finally:
            self.held_s()
            self._taken -= 1
            self._left[number] -= 1
            self._busy -= 1
            self.clock.tell()

    async def play(self, number: int, durations: Sequence[float]) -> None:
        """Episodes of a group that do nothing but take so long by the simulated clock."""
        for seconds in durations:
            self._keep(self._play(number, seconds))
        await self.clock.until(lambda: self._left[number] == 0)

    async def _play(self, number: int, seconds: float) -> None:
        async with self.episode_slot(number):
            await self.clock.spend(seconds)

    async def close(self) -> None:
        """What is under way is given up; its finished episodes are saved."""
        self.clock.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _admit(self) -> None:
        """As late as possible: a group that waited for slots would only grow old."""
        while True:
            while self._free and (admitted := self.queue.admit(self._steps())):
                self._note(admitted)
                self._begin(admitted)
            await self.clock.until(lambda: self._free and self.queue.may_admit(self._steps()))

    @property
    def _free(self) -> bool:
        return self._busy < self._slots

    def _begin(self, admitted: Admitted) -> None:
        self.held_s()
        self._left[admitted.number] = self._rollouts
        self._busy += self._rollouts
        self._keep(self._group(admitted))

    async def _group(self, admitted: Admitted) -> None:
        # A run that goes on from an earlier checkpoint meets groups of policies that it has yet to make anew.
        await self.clock.until(lambda: self.queue.version >= admitted.version)
        ended = await self._sample(self, admitted)
        self.held_s()
        self._busy -= self._left.pop(admitted.number)
        self.queue.end(admitted, ended)
        self.clock.tell()

    def _keep(self, work: Work) -> None:
        task = self.clock.start(self._watched(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # if it was stopped before it began

    async def _watched(self, work: Work) -> None:
        try:
            await work
        except Exception as error:  # the learner hears of it when it asks for groups
            self._failure = self._failure or error
            self.clock.tell()
