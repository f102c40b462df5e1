"""Episodes that are scored together: their environment's own code compares the members of a group, once all have ended.

Such an episode has no score by itself, so its record is written when its group has one. What the machinery spoils of
the scoring is tried again, and then spoils every episode that it was for: none is scored 0 for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airloop.envs.base import Environment
from airloop.errors import AirError, InfraError
from airloop.rollout.collected import Place, RolloutSettings
from airloop.rollout.deadline import OutOfTime, within
from airloop.rollout.episode import DEFECT_FIX, said_of, weighted_reward, with_place
from airloop.rollout.program import ProgramEnvironment
from airloop.success import measured_success
from airloop.types import Score, Trajectory
from airloop.waits import waiting

TOGETHER = "scored_together"  # the metric that says of how many episodes a score was, this one among them


def scores_groups(env: Environment) -> bool:
    return isinstance(env, ProgramEnvironment) and env.scores_groups


def waits_for_group(env: Environment, trajectory: Trajectory) -> bool:
    """Whether its score is still to come. One that crashed or ran out of time has its own: that of nothing done."""
    return scores_groups(env) and trajectory.ending != "infra_error" and not trajectory.rewards


async def end_group(
    env: Environment,
    members: Mapping[Place, Trajectory],
    settings: RolloutSettings,
    counts: Counter[str],
    save: Callable[[Trajectory], None],
) -> dict[Place, Trajectory]:
    """Those of a group that wait, scored among each other and saved. The others stay as they are: lost ones are not
    compared, nor those that ended without a result."""
    waiting_ones = {place: t for place, t in members.items() if waits_for_group(env, t)}
    if not waiting_ones:
        return {}
    try:
        scored = await score_together(env, list(waiting_ones.values()), settings, counts)
    except AirError as error:
        for trajectory in waiting_ones.values():
            save(replace(trajectory, ending="infra_error", error=f"defect: {error.problem}"))
        raise
    for trajectory in scored:
        save(trajectory)
    return dict(zip(waiting_ones, scored, strict=True))


async def score_together(
    env: Environment, members: Sequence[Trajectory], settings: RolloutSettings, counts: Counter[str]
) -> list[Trajectory]:
    """In their order. AirError for a score that is none."""
    assert isinstance(env, ProgramEnvironment)
    task = members[0].task
    for attempt in range(settings.retries + 1):
        began = time.monotonic()
        try:
            with waiting(f"the score of a group of task {task.id}", f"environment {env.name}", settings.finish_s):
                work = env.score_group([t.id for t in members])
                scores = await within(settings.finish_s, "scoring the group", work)
            seconds = time.monotonic() - began
            return [_scored(env, t, s, len(members), seconds) for t, s in zip(members, scores, strict=True)]
        except (InfraError, OutOfTime) as error:
            counts["infra_errors"] += 1
            said = with_place(InfraError(str(error)) if isinstance(error, OutOfTime) else error)
        except Exception as error:
            raise AirError(
                f"The score of a group in environment {env.name!r}, task {task.id!r}: {said_of(error)}",
                getattr(error, "fix", "") or DEFECT_FIX,
            ) from error
        if attempt < settings.retries:
            counts["retried"] += 1
            await asyncio.sleep(settings.retry_wait_s * 2**attempt)
    why = f"its group could not be scored: {said}"
    return [replace(t, ending="infra_error", error=why) for t in members]


def _scored(env: Environment, trajectory: Trajectory, score: Score, together: int, seconds: float) -> Trajectory:
    own = {**trajectory.metrics, "seconds_scoring": seconds, TOGETHER: float(together)}
    return replace(
        trajectory,
        rewards=dict(score.rewards),
        reward=weighted_reward(score.rewards, (), env.reward_weights, env.turn_reward_mode),
        metrics={**measured_success(env, score.metrics, score.rewards), **score.metrics, **own},
    )


def is_complete(left: Mapping[Place, Trajectory], rollouts: int) -> bool:
    """Whether what a killed run has left of a group is all of it: a comparison with some of its members missing is no
    longer the one that gave the scores."""
    compared = [t.metrics[TOGETHER] for t in left.values() if TOGETHER in t.metrics]
    return len(left) == rollouts and all(count == len(compared) for count in compared)


def incomplete_groups(
    left: Mapping[Place, Trajectory], envs: Mapping[str, Environment], rollouts: int
) -> dict[Place, Trajectory]:
    """Of episodes that a killed run has left, those of groups that are scored together and are not whole: they are
    played anew."""
    groups: dict[int, dict[Place, Trajectory]] = {}
    for place, trajectory in left.items():
        groups.setdefault(place[0], {})[place] = trajectory
    together = {name for name in {t.task.env for t in left.values()} if name in envs and scores_groups(envs[name])}
    return {
        place: trajectory
        for group in groups.values()
        for place, trajectory in group.items()
        if trajectory.task.env in together and not is_complete(group, rollouts)
    }
