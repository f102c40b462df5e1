"""One episode, from the opening to the record of it.

Whatever ends an episode, it takes the same path: play, finish, close, record. So a reward cannot be missed
because of the way an episode ended, and every episode ends in exactly one trajectory. Trouble in the
machinery is never scored; a defect in an environment is raised together with the trajectory so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airloop.chat.actions import parse
from airloop.engine.base import ContextFull, EngineDowntime, EngineFailed
from airloop.envs.base import Environment, Session
from airloop.envs.contract import act_in, begin_session, open_session, score_session
from airloop.errors import AirError, InfraError
from airloop.rollout.agents import ModelAgent
from airloop.rollout.deadline import OutOfTime, added_by, within
from airloop.success import measured_success
from airloop.types import Action, Agent, Ending, Message, Observation, Score, Task, Times, Trajectory, Turn, shown_anew
from airloop.waits import waiting

log = logging.getLogger(__name__)

FINISH_S = 600.0  # for grading, after the episode's own time
CLOSE_S = 60.0  # for giving a session's resources back
SHOWN = 60  # characters of an action that is waited for
# What stands between an episode and whatever it plays in: of no interest where that fails.
OF_EPISODES = {__file__, within.__code__.co_filename, act_in.__code__.co_filename}
DEFECT_FIX = "mend the environment or the agent; the trajectory so far holds the whole traceback"


class EpisodeDefect(AirError):
    """An environment, a reward or an agent failed in a way that is not bad luck: save it, stop, mend it."""

    def __init__(self, problem: str, fix: str, trajectory: Trajectory) -> None:
        super().__init__(problem, fix)
        self.trajectory = trajectory


class BadReward(Exception):
    """`str()` says which component and why; `fix` what to change."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


async def run_episode(
    env: Environment,
    task: Task,
    agent: Agent,
    *,
    id: str,
    seed: int,
    version: int = 0,
    max_turns: int | None = None,
    deadline_s: float = 3600.0,
    finish_s: float = FINISH_S,
    parser: str = "auto",
    downtime: EngineDowntime | None = None,
) -> Trajectory:
    """Plays one episode. Returns its trajectory for each of the five endings; raises EpisodeDefect for
    anything that is not supposed to happen, and lets cancellation through, with the session closed. `downtime`: of the
    engine that the agent asks."""
    turns = max_turns if max_turns is not None else env.max_turns
    episode = _Episode(env, task, agent, parser, turns, added=added_by(downtime))
    blank = Trajectory(id, task, seed, version, (), (), "infra_error", {}, (), {}, 0.0, time.time(), 0.0)
    clock = time.monotonic()

    def record(**outcome: Any) -> Trajectory:
        return replace(blank, seconds=time.monotonic() - clock, **episode.so_far(), **outcome)

    try:
        ending, score = await episode.run(seed, deadline_s, finish_s)
        reward = weighted_reward(score.rewards, episode.turn_rewards, env.reward_weights, env.turn_reward_mode)
        success = measured_success(env, score.metrics, score.rewards)
    except Exception as error:
        return unfinished(error, env, task, record)
    metrics = {**success, **score.metrics, **episode.metrics()}
    return record(ending=ending, rewards=dict(score.rewards), reward=reward, metrics=metrics)


def unfinished(error: Exception, env: Environment, task: Task, record: Callable[..., Trajectory]) -> Trajectory:
    """What is recorded of an episode that the machinery has ended; a defect, or an engine's end, goes on as one."""
    if isinstance(error, InfraError):
        return record(error=with_place(error))
    if isinstance(error, EngineFailed):
        raise EpisodeDefect(error.problem, error.fix, record(error=error.problem)) from error
    raise EpisodeDefect(
        f"Environment {env.name!r}, task {task.id!r}: {said_of(error)}",
        getattr(error, "fix", "") or DEFECT_FIX,
        record(error=f"defect: {''.join(traceback.format_exception(error))}"),
    ) from error


@dataclass
class _Episode:
    """The mutable middle of run_episode: what has happened so far."""

    env: Environment
    task: Task
    agent: Agent
    parser: str
    max_turns: int
    messages: list[Message] = field(default_factory=list)
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: list[Turn] = field(default_factory=list)
    known: list[Message] = field(default_factory=list)  # the conversation as the agent has it
    end: float = math.inf  # by time.monotonic(): when its own time is up
    added: Callable[[], float] = lambda: 0.0  # seconds that it has beside its own
    opening_s: float = 0.0
    scoring_s: float = 0.0

    async def run(self, seed: int, deadline_s: float, finish_s: float) -> tuple[Ending, Score]:
        began = time.monotonic()
        self.end = began + deadline_s
        made = open_session(self.env, self.task, seed)
        try:
            with self._waiting("the session", deadline_s):
                session = await within(deadline_s, "opening the session", made.__aenter__())
        except BaseException as error:  # `async with` would not close it; but it may have begun, or even be open
            with contextlib.suppress(Exception):  # it may miss what it has not made yet
                await self._close(made)
            if isinstance(error, OutOfTime):
                raise InfraError(str(error)) from error
            raise
        self.opening_s = time.monotonic() - began
        try:
            ending = await self._play_in_time(session)
            score = await self._score(session, finish_s)
        except BaseException as error:
            await self._close(session)
            if isinstance(error, OutOfTime):
                raise InfraError(str(error)) from error
            raise
        try:
            await self._close(session)
        except asyncio.CancelledError:
            _cancel_at_next_await()  # the episode is over: its record comes first
        return ending, score

    async def _score(self, session: Session, finish_s: float) -> Score:
        began = time.monotonic()
        try:
            with self._waiting("the score", finish_s):
                return await within(finish_s, "finish()", score_session(session))
        finally:
            self.scoring_s = time.monotonic() - began

    def _waiting(self, what: str, deadline_s: float) -> AbstractContextManager[Any]:
        return waiting(f"{what} of task {self.task.id}", f"environment {self.env.name}", deadline_s)

    def left_s(self) -> float:
        return self.end + self.added() - time.monotonic()

    async def _play_in_time(self, session: Session) -> Ending:
        try:
            return await within(self.left_s(), "the episode", self._play(session), self.left_s)
        except ContextFull:
            return "context_full"
        except OutOfTime:
            if not self.messages:
                raise  # nothing was shown yet: there is nothing to score
            return "deadline"

    async def _play(self, session: Session) -> Ending:
        opening = await begin_session(session)
        self.messages, self.tools = list(opening.messages), opening.tools
        if self.tools and self.env.action_format != "tools":
            raise ValueError(
                f"its session has tools, and it reads replies as {self.env.action_format}: a session with tools needs "
                'action_format = "tools" in its environment'
            )
        while len(self.turns) < self.max_turns:
            if await self._turn(session):
                return "done"
            if self.left_s() < 0:  # the turn went on although it was told to stop
                return "deadline"
        return "max_turns"

    async def _turn(self, session: Session) -> bool:
        started = time.monotonic()
        conversation = list(session.view(tuple(self.messages)))
        if not conversation:
            raise ValueError("view() left nothing of the conversation: it must show at least one message")
        reply = await self.agent.reply(conversation, self.tools)
        replied = time.monotonic()
        model = self.agent if isinstance(self.agent, ModelAgent) else None
        shown, places = shown_anew(self.known, conversation)
        self.messages.append(reply)
        self.known = [*conversation, reply]
        session.reply_ids = model.sampled.token_ids if model and model.sampled else None
        actions: list[Action] = []
        seen: list[Observation] = []
        try:
            told: dict[str, Any] = {"cut": model.cut, "thinking": model.thinking} if model else {}
            told |= {"tools": self.tools, "plain": session.plain_reply}
            actions, note = parse(reply["content"], self.env.action_format, self.parser, **told)
            return await self._act(session, actions, note, seen)
        finally:  # a turn cut short is a turn too
            times = model.times if model else Times(model=replied - started)
            times = replace(times, tool=time.monotonic() - replied)
            sampled = model.sampled if model else None
            self.turns.append(Turn(shown, reply, sampled, tuple(actions), tuple(seen), times, places))

    async def _act(self, session: Session, actions: list[Action], note: str, seen: list[Observation]) -> bool:
        for action in actions:
            observation = session.invalid(action) if action.kind == "invalid" else await self._answer(session, action)
            seen.append(observation)
            text = f"{note}\n{observation.text}" if note else observation.text
            self.messages.append(as_message(self.env, action, text))
            note = ""
            if observation.done:
                return True
        return False

    async def _answer(self, session: Session, action: Action) -> Observation:
        asked = " ".join((action.name or action.text).split())[:SHOWN]
        with self._waiting(f"the answer to `{asked}`, turn {len(self.turns) + 1}", self.left_s()):
            return await act_in(session, action)

    async def _close(self, session: Session) -> None:
        """A session that does not close spoils no episode, but it must not hold the run either."""
        try:
            await within(CLOSE_S, "closing the session", session.__aexit__(*sys.exc_info()))
        except (InfraError, OutOfTime) as error:
            log.warning("task %s of %s: %s", self.task.id, self.env.name, error)

    @property
    def turn_rewards(self) -> tuple[dict[str, float], ...]:
        return tuple(_summed(turn.observations) for turn in self.turns)

    def so_far(self) -> dict[str, Any]:
        branches = self.agent.branches() if isinstance(self.agent, ModelAgent) else ()
        seen = {"turns": tuple(self.turns), "tools": tuple(self.tools)}
        return {**seen, "branches": branches, "turn_rewards": self.turn_rewards}

    def metrics(self) -> dict[str, float]:
        actions = [action for turn in self.turns for action in turn.actions]
        invalid = sum(action.kind == "invalid" for action in actions)
        own = self.agent.metrics() if isinstance(self.agent, ModelAgent) else {}
        seconds = {"seconds_opening": self.opening_s, "seconds_scoring": self.scoring_s}
        return {"turns": len(self.turns), "invalid_actions": invalid / max(len(actions), 1), **seconds, **own}


def said_of(error: Exception) -> str:
    """Without its fix, which stands by itself."""
    return error.problem if isinstance(error, AirError) else f"{type(error).__name__}: {error}"


def with_place(error: InfraError) -> str:
    """What happened, and where: the frames outside of episodes down to what failed first, on one line."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    frames = [f for e in dict.fromkeys((error, first)) for f in traceback.extract_tb(e.__traceback__)]
    below = [f for f in frames if f.filename not in OF_EPISODES] or frames[-1:]
    places = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in below)
    return f"{str(error) or repr(error)} [at {places}]"


def _cancel_at_next_await() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    task.cancel()


def as_message(env: Environment, action: Action, text: str) -> Message:
    """What an action did, as the agent is told of it."""
    if env.action_format != "tools":
        return Message(role="user", content=text)
    message = Message(role="tool", content=text)
    if action.name:
        message["name"] = action.name
    if action.call_id:
        message["tool_call_id"] = action.call_id
    return message


def _summed(observations: tuple[Observation, ...]) -> dict[str, float]:
    total: dict[str, float] = {}
    for observation in observations:
        for name, value in observation.rewards.items():
            total[name] = total.get(name, 0.0) + value
    return total


def weighted_reward(
    rewards: Mapping[str, float],
    turn_rewards: Sequence[Mapping[str, float]],
    weights: Mapping[str, float],
    modes: Mapping[str, str],
) -> float:
    """The one number that training uses. A component that did not occur counts 0; where no weights are named, each that
    did counts 1."""
    totals = component_totals(rewards, turn_rewards, modes)
    weights = weights or dict.fromkeys(totals, 1.0)
    for name, value in totals.items():
        if not math.isfinite(value):
            raise BadReward(f"the reward component {name!r} is {value}", "a reward must be a finite number")
        if name not in weights:
            raise BadReward(
                f"the reward component {name!r} has no weight (weights: {', '.join(weights) or 'none'})",
                f"add {name!r} to the reward weights; 0 if it should only be watched",
            )
    return math.fsum(weights[name] * value for name, value in totals.items())


def compared(env: Environment, scored: tuple[Trajectory, ...]) -> tuple[Trajectory, ...]:
    """With the components that the environment gives within a group. The files on disk stay as they were."""
    try:
        found = env.group_rewards(scored) if scored else ()
        if len(found) != len(scored):
            raise BadReward(
                f"it gave {len(found)} mappings for {len(scored)} trajectories", "give one for each, in their order"
            )
        return tuple(
            _with_more(t, extra, env.reward_weights, env.turn_reward_mode) if extra else t
            for t, extra in zip(scored, found, strict=True)
        )
    except Exception as error:
        raise AirError(
            f"group_rewards() of environment {env.name!r}, task {scored[0].task.id!r}: {type(error).__name__}: {error}",
            getattr(error, "fix", "") or "mend the environment; the episodes are saved, so the run can be resumed",
        ) from error


def _with_more(
    trajectory: Trajectory, extra: Mapping[str, float], weights: Mapping[str, float], modes: Mapping[str, str]
) -> Trajectory:
    """The trajectory with further components, weighted anew as a whole."""
    for name in extra:
        if name in trajectory.rewards:
            raise BadReward(
                f"the reward component {name!r} is given both by the episode and within its group",
                "give the two different names, or one would hide the other",
            )
    rewards = {**trajectory.rewards, **extra}
    return replace(
        trajectory, rewards=rewards, reward=weighted_reward(rewards, trajectory.turn_rewards, weights, modes)
    )


def component_totals(
    rewards: Mapping[str, float], turn_rewards: Sequence[Mapping[str, float]], modes: Mapping[str, str]
) -> dict[str, float]:
    """Each component of the whole episode, unweighted. Those given per turn are summed over the turns or, where the
    environment says "mean", divided by the number of turns."""
    totals: dict[str, float] = {}
    for name in sorted({name for turn in turn_rewards for name in turn}):
        if name in rewards:
            raise BadReward(
                f"the reward component {name!r} is given both per turn and for the whole episode",
                "give the two different names, or it would count twice",
            )
        total = math.fsum(turn.get(name, 0.0) for turn in turn_rewards)
        totals[name] = total / len(turn_rewards) if modes.get(name, "sum") == "mean" else total
    return {**totals, **rewards}
