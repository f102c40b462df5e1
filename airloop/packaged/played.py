"""An episode whose replies come from outside: another system's loop asks its model and hands each reply on.

It is the same code as in training (run_episode), so that actions, notes, limits and rewards are the same.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.files import write_json
from airloop.rollout.agents import ModelAgent
from airloop.rollout.episode import run_episode
from airloop.runs.trajectory_file import to_json
from airloop.seeds import episode_seed
from airloop.types import Message, Sampled, Task, Trajectory

# Whose loop it is, keeps the time: this is only so that nothing waits for ever.
LONGEST_S = 7 * 24 * 3600.0

# Episodes of each task so far, so that each has a seed of its own and a process repeats itself.
_begun: Counter[tuple[str, str, str]] = Counter()


@dataclass(frozen=True)
class Shown:
    """What is to be answered."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Said:
    """A reply as text; whether it ended by its length; its tokens, where they are known."""

    text: str
    cut: bool = False
    sampled: Sampled | None = None


class Outsider(ModelAgent):
    """Hands over what it is shown and waits for the reply, or for the reason why there is none."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Shown] = asyncio.Queue()
        self.said: asyncio.Queue[Said | Exception] = asyncio.Queue()

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        self.shown.put_nowait(Shown(tuple(messages), tuple(tools)))
        said = await self.said.get()
        if isinstance(said, Exception):
            raise said
        self.cut, self.sampled = said.cut, said.sampled
        return Message(role="assistant", content=said.text)


class Played:
    """
    shown = await played.begin()
    while shown is not None:
        shown = await played.answer(Said(await ask(shown.messages, shown.tools)))
    played.trajectory.reward
    """

    def __init__(self, env: Environment, task: Task, folder: str | None = None) -> None:
        """`folder`: where its trajectory is kept, as a run of air keeps it; None: nowhere."""
        self._agent = Outsider()
        self._episode: asyncio.Task[Trajectory] = asyncio.create_task(_play(env, task, self._agent, folder))

    @property
    def over(self) -> bool:
        return self._episode.done()

    @property
    def trajectory(self) -> Trajectory:
        """Of an episode that is over. EpisodeDefect where the environment is at fault."""
        return self._episode.result()

    async def begin(self) -> Shown | None:
        """What is to be answered first; None where the episode is over before."""
        return await self._next()

    async def answer(self, said: Said) -> Shown | None:
        """What follows a reply; None when the episode is over."""
        self._agent.said.put_nowait(said)
        return await self._next()

    async def _next(self) -> Shown | None:
        shown = asyncio.ensure_future(self._agent.shown.get())
        try:
            await asyncio.wait({shown, self._episode}, return_when=asyncio.FIRST_COMPLETED)
            if shown.done():
                return shown.result()
        finally:
            shown.cancel()
        self._episode.result()
        return None

    async def stop(self, why: Exception) -> Trajectory:
        """No reply will come: ContextFull or OutOfTime. The episode is scored on what it has, an action that is under
        way included."""
        if not self.over:
            self._agent.said.put_nowait(why)
        return await asyncio.shield(self._episode)

    async def abandon(self) -> None:
        """Ended without a score: the machinery has failed."""
        self._episode.cancel()
        await asyncio.wait({self._episode})
        if not self._episode.cancelled():
            self._episode.exception()  # seen, so that asyncio does not report it as forgotten


async def _play(env: Environment, task: Task, agent: Outsider, folder: str | None) -> Trajectory:
    place = (task.env, task.split, task.id)
    seed = episode_seed(0, 0, task.env, task.id, _begun[place])
    _begun[place] += 1
    words = [re.sub(r"[^\w.-]+", "-", task.id), time.strftime("%Y%m%dT%H%M%S"), uuid.uuid4().hex[:8]]
    name = "_".join(words)  # of a file, whatever process writes beside this one
    over = await run_episode(env, task, agent, id=name, seed=seed, deadline_s=LONGEST_S)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / f"{name}.json", to_json(over))
    return over


def check_alone(env: Environment, over: Trajectory) -> None:
    """AirError where an episode that is scored by itself would lack a component."""
    if found := [name for extra in env.group_rewards([over]) for name in extra]:
        raise AirError(
            f"The reward component {found[0]!r} compares the episodes of a group, and this one is scored by itself.",
            f"leave {found[0]!r} out of rewards; groups are scored by verifiers up to 0.3.1 (load_environment).",
        )
