"""An episode whose replies come from outside: another system's loop samples its model and passes each reply on.

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

# The other system has its own time limit: this one only keeps an abandoned episode from waiting for ever.
DEADLINE_S = 7 * 24 * 3600.0

# Episodes of each task so far: each has a seed of its own, and a repeated process has the same seeds.
_episode_counts: Counter[tuple[str, str, str]] = Counter()


@dataclass(frozen=True)
class Prompt:
    """What the model is to reply to."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ExternalReply:
    """A reply as text; whether it ended by its length; its tokens, where they are known."""

    text: str
    cut: bool = False
    sampled: Sampled | None = None


class ExternalAgent(ModelAgent):
    """Passes each prompt to the other system and waits for its reply, or for the exception that ends the episode."""

    def __init__(self) -> None:
        self.prompts: asyncio.Queue[Prompt] = asyncio.Queue()
        self.replies: asyncio.Queue[ExternalReply | Exception] = asyncio.Queue()

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        self.prompts.put_nowait(Prompt(tuple(messages), tuple(tools)))
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        self.cut, self.sampled = reply.cut, reply.sampled
        return Message(role="assistant", content=reply.text)


class ExternalEpisode:
    """An episode that another system's loop drives:

    prompt = await episode.begin()
    while prompt is not None:
        prompt = await episode.answer(ExternalReply(await ask(prompt.messages, prompt.tools)))
    episode.trajectory.reward
    """

    def __init__(self, env: Environment, task: Task, folder: str | None = None) -> None:
        """`folder`: where its trajectory is kept, as a run of air keeps it; None: nowhere."""
        self._agent = ExternalAgent()
        self._episode: asyncio.Task[Trajectory] = asyncio.create_task(_run(env, task, self._agent, folder))

    @property
    def done(self) -> bool:
        return self._episode.done()

    @property
    def trajectory(self) -> Trajectory:
        """Of an episode that is over. EpisodeDefect where the environment is at fault."""
        return self._episode.result()

    async def begin(self) -> Prompt | None:
        """The first prompt; None where the episode has ended before."""
        return await self._next()

    async def answer(self, reply: ExternalReply) -> Prompt | None:
        """The prompt after a reply; None when the episode has ended."""
        self._agent.replies.put_nowait(reply)
        return await self._next()

    async def _next(self) -> Prompt | None:
        prompt = asyncio.ensure_future(self._agent.prompts.get())
        try:
            await asyncio.wait({prompt, self._episode}, return_when=asyncio.FIRST_COMPLETED)
            if prompt.done():
                return prompt.result()
        finally:
            prompt.cancel()
        self._episode.result()
        return None

    async def stop(self, why: Exception) -> Trajectory:
        """No reply will come: ContextFull or OutOfTime. The episode is scored on what it has, an action that is under
        way included."""
        if not self.done:
            self._agent.replies.put_nowait(why)
        return await asyncio.shield(self._episode)

    async def abandon(self) -> None:
        """Ended without a score: the machinery has failed."""
        self._episode.cancel()
        await asyncio.wait({self._episode})
        if not self._episode.cancelled():
            self._episode.exception()  # seen, so that asyncio does not report it as forgotten


async def _run(env: Environment, task: Task, agent: ExternalAgent, folder: str | None) -> Trajectory:
    place = (task.env, task.split, task.id)
    seed = episode_seed(0, 0, task.env, task.id, _episode_counts[place])
    _episode_counts[place] += 1
    words = [re.sub(r"[^\w.-]+", "-", task.id), time.strftime("%Y%m%dT%H%M%S"), uuid.uuid4().hex[:8]]
    name = "_".join(words)  # unique among all processes that write to the folder
    trajectory = await run_episode(env, task, agent, id=name, seed=seed, deadline_s=DEADLINE_S)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / f"{name}.json", to_json(trajectory))
    return trajectory


def check_no_group_rewards(env: Environment, trajectory: Trajectory) -> None:
    """AirError where an episode that is scored by itself would lack a component."""
    if found := [name for extra in env.group_rewards([trajectory]) for name in extra]:
        raise AirError(
            f"The reward component {found[0]!r} compares the episodes of a group, and this one is scored by itself.",
            f"leave {found[0]!r} out of rewards; groups are scored by verifiers up to 0.3.1 (load_environment).",
        )
