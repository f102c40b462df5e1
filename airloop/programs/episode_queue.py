"""The queue of episodes for remote agents: pending, taken and closed ones.

The run adds an episode and later closes it; in between an agent may take it and finish it. Run and agents use the queue
from different threads, so every change is atomic under a lock: an episode is given to one agent only, and a result that
was acknowledged to an agent is the result that the run gets.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.rollout.program import Address

CLOSED_LIMIT = 4096  # closed episodes that are remembered, the latest ones: a repeated request gets the same answer


@dataclass(frozen=True)
class EpisodeResult:
    """An agent's result of its episode: rewards, or why there are none."""

    rewards: float | dict[str, float] | None = None
    error: str = ""  # its program failed
    abandoned: bool = False  # not the agent's fault: the episode is tried again


@dataclass
class PendingEpisode:
    """An episode that the run waits for."""

    task: str  # its id
    row: Mapping[str, Any]
    seed: int
    address: Address
    on_change: Callable[[], None]  # called from any thread when it was taken, and when it was finished
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    taken: bool = False
    result: EpisodeResult | None = None


class Refusal(Exception):
    """A request of an agent that is refused, with its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class EpisodeQueue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, PendingEpisode] = OrderedDict()  # in the order in which they were added
        self._closed: OrderedDict[str, EpisodeResult | None] = OrderedDict()  # None: closed without a result

    # --- the run's side -------------------------------------------------------------------------------------

    def add(self, episode: PendingEpisode) -> None:
        with self._lock:
            self._open[episode.id] = episode

    def close(self, episode: PendingEpisode) -> EpisodeResult | None:
        """The result, if its agent has given one; from now on no other is accepted."""
        with self._lock:
            if self._open.pop(episode.id, None) is not None:
                self._closed[episode.id] = episode.result
                while len(self._closed) > CLOSED_LIMIT:
                    self._closed.popitem(last=False)
            return episode.result

    # --- the agents' side -----------------------------------------------------------------------------------

    def take(self, task: str | None = None) -> PendingEpisode | None:
        """The episode that has waited longest, of this task if one is named."""
        with self._lock:
            for episode in self._open.values():
                if not episode.taken and task in (None, episode.task):
                    episode.taken = True
                    break
            else:
                return None
        episode.on_change()
        return episode

    def address(self, id: str) -> Address | None:
        """The policy's address of an episode that is taken and not finished; None of any other."""
        with self._lock:
            episode = self._open.get(id)
            return episode.address if episode and episode.taken and episode.result is None else None

    def finish(self, id: str, result: EpisodeResult) -> None:
        """The same result a second time is accepted: its agent may not have received the answer."""
        with self._lock:
            episode = self._open.get(id)
            if episode is None or episode.result is not None:
                known = episode.result if episode else self._closed.get(id)
                if known == result:
                    return
                if episode is None and id not in self._closed:
                    raise Refusal(404, "There is no such episode.")
                raise Refusal(*((410, "Its time is over: ask for another.") if known is None else (409, FINISHED)))
            if not episode.taken:
                raise Refusal(404, "There is no such episode.")
            episode.result = result
        episode.on_change()

    def counts(self) -> dict[str, int]:
        with self._lock:
            taken = sum(episode.taken for episode in self._open.values())
            return {"waiting": len(self._open) - taken, "played": taken}


FINISHED = "It was finished already, with something else."
