"""Episodes for agents that live elsewhere: which wait to be asked for, which are being played, which are over.

The run offers an episode and later closes it; in between an agent may take it and finish it. Both sides have threads of
their own, so every change is one step under a lock: an episode is given to one agent only, and what an agent was told
is finished is what the run gets.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.rollout.program import Address

REMEMBERED = 4096  # episodes that are over, the latest ones: an agent that asks twice is told the same


@dataclass(frozen=True)
class Said:
    """What an agent said of its episode: rewards, or why there are none."""

    rewards: float | dict[str, float] | None = None
    error: str = ""  # its program failed
    abandoned: bool = False  # not its doing: to be tried again


@dataclass
class Offered:
    task: str  # its id
    row: Mapping[str, Any]
    seed: int
    address: Address
    changed: Callable[[], None]  # called from any thread when it was taken, and when it was finished
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    taken: bool = False
    said: Said | None = None


class Refusal(Exception):
    """What an agent asked for that cannot be, and the status that says so."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Desk:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Offered] = OrderedDict()  # in the order in which they were offered
        self._over: OrderedDict[str, Said | None] = OrderedDict()  # None: its time was over

    # --- the run's side -------------------------------------------------------------------------------------

    def offer(self, episode: Offered) -> None:
        with self._lock:
            self._open[episode.id] = episode

    def close(self, episode: Offered) -> Said | None:
        """What its agent said, if it has; from now on nobody can say any more."""
        with self._lock:
            if self._open.pop(episode.id, None) is not None:
                self._over[episode.id] = episode.said
                while len(self._over) > REMEMBERED:
                    self._over.popitem(last=False)
            return episode.said

    # --- the agents' side -----------------------------------------------------------------------------------

    def take(self, task: str | None = None) -> Offered | None:
        """The episode that has waited longest, of this task if one is named."""
        with self._lock:
            for episode in self._open.values():
                if not episode.taken and task in (None, episode.task):
                    episode.taken = True
                    break
            else:
                return None
        episode.changed()
        return episode

    def address(self, id: str) -> Address | None:
        """Of an episode that is being played."""
        with self._lock:
            episode = self._open.get(id)
            return episode.address if episode and episode.taken and episode.said is None else None

    def finish(self, id: str, said: Said) -> None:
        """The same again is no mistake: its agent may not have heard the answer."""
        with self._lock:
            episode = self._open.get(id)
            if episode is None or episode.said is not None:
                known = episode.said if episode else self._over.get(id)
                if known == said:
                    return
                if episode is None and id not in self._over:
                    raise Refusal(404, "There is no such episode.")
                raise Refusal(*((410, "Its time is over: ask for another.") if known is None else (409, FINISHED)))
            if not episode.taken:
                raise Refusal(404, "There is no such episode.")
            episode.said = said
        episode.changed()

    def counts(self) -> dict[str, int]:
        with self._lock:
            taken = sum(episode.taken for episode in self._open.values())
            return {"waiting": len(self._open) - taken, "played": taken}


FINISHED = "It was finished already, with something else."
