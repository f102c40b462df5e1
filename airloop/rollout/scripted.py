"""One episode by an agent that is no policy of ours: a script, for audits, demonstrations and alarms."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

from airloop.engine.base import Sampling
from airloop.envs.base import Environment
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.episode import run_episode
from airloop.rollout.group_scoring import score_together, waits_for_group
from airloop.rollout.program import EpisodeEndpoint, ProgramEnvironment, run_program
from airloop.serve.served_agent import ServedAgent
from airloop.types import Agent, Task, Trajectory

ALONE = RolloutSettings(Sampling(1), 1, retries=0)  # nothing is sampled
_NUMBERS = itertools.count()


async def run_agent(
    env: Environment, task: Task, agent: Agent, *, id: str, deadline_s: float = 3600.0, **more: Any
) -> Trajectory:
    """In any environment. Where episodes are scored together, this one is a group by itself."""
    if not isinstance(env, ProgramEnvironment):
        return await run_episode(env, task, agent, id=id, deadline_s=deadline_s, **more)
    name = f"{id}-{next(_NUMBERS)}"  # several scripts may play a task at once
    served = ServedAgent(agent, env.max_turns)
    try:
        async with EpisodeEndpoint() as endpoint:
            played = await run_program(env, task, served, endpoint, id=name, deadline_s=deadline_s, **more)
        if waits_for_group(env, played):
            (played,) = await score_together(env, [played], ALONE, Counter())
    finally:
        env.forget([name])
    return replace(played, id=id)
