"""Episodes that programs play: an agent of whatever make asks the policy over HTTP, as it would ask any model.

The program gets an address and a key of its own episode. What it asks and what it is answered is kept as tokens
(airloop.chat.forest), so what is trained is what was sampled, in what it was sampled from; the program says what the
episode was worth.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airloop.chat.forest import Tokenizer
from airloop.engine.base import Engine, EngineFailed
from airloop.envs.base import A, ActionFormat, Environment, Opening, Session
from airloop.errors import AirError, InfraError
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.episode import (
    DEFECT_FIX,
    EpisodeDefect,
    OutOfTime,
    run_episode,
    said_of,
    weighted_reward,
    with_place,
    within,
)
from airloop.serve.app import Endpoint
from airloop.serve.chat_form import BadRequest, ChatRequest
from airloop.serve.episode import Answer, ServedAgent, ServedEpisode
from airloop.serve.server import serving
from airloop.serve.unfolding import Live
from airloop.success import measured_success
from airloop.types import Action, Agent, Ending, Message, Observation, Score, Task, Trajectory
from airloop.waits import waiting

MODEL = "policy"  # what the endpoint calls it; programs may write any other
OPENING_S = 120.0  # for a program's first request, where only that is wanted


@dataclass(frozen=True)
class Address:
    """Where a program reaches the policy: what OPENAI_BASE_URL and OPENAI_API_KEY are."""

    base_url: str
    api_key: str
    model: str = MODEL

    def variables(self) -> dict[str, str]:
        """For a program's environment. Anthropic's clients add /v1 by themselves."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }


class ProgramCrashed(Exception):
    """The agent's own program failed after the policy had spoken: its ending, with the score of nothing done."""


class ProgramEnvironment(Environment[A]):
    """An environment whose episodes are played by programs. `name`, `tasks` and `play` must be given."""

    action_format: ActionFormat = "text"  # type: ignore[misc]  # its program reads replies by itself
    # How a program could be cheated nobody but its author knows; the audit has six scripts that need not.
    dishonest: ClassVar[tuple[str, ...]] = ("noop",)

    @abstractmethod
    async def play(self, task: Task, seed: int, address: Address) -> Score:
        """One episode, from the program's start to its end. ProgramCrashed is the agent's own ending, InfraError
        trouble of the machinery; cancelled, it must leave no program behind."""

    @property
    def max_turns(self) -> int:
        """The most requests of an episode."""
        return 64

    def trains(self, messages: Sequence[Message], first: Sequence[Message]) -> bool:
        """Whether replies in this conversation are trained; `first` is the episode's first one."""
        return True

    def open(self, task: Task, seed: int) -> Session:
        """Only to look at what the program asks first: the episode itself is its own."""
        return FirstRequest(self, task, seed)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        if name == "noop":
            return Silent()
        raise AirError(
            f"The environment {self.name!r} has no script {name!r}: its agent is a program.",
            "scripts stand in for the model; only noop, a model that says nothing, is known of every program.",
        )


class Silent:
    """A model that says nothing."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message(role="assistant", content="")


class Door:
    """The endpoint for the episodes of one collection: no program of an earlier one finds it."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(MODEL)
        self._serving = serving(self.endpoint.app())
        self._url = ""

    async def __aenter__(self) -> Door:
        self._url = await self._serving.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._serving.__aexit__(*error)

    def open(self, id: str, episode: ServedEpisode) -> Address:
        return Address(f"{self._url}/e/{id}/v1", self.endpoint.open(id, episode))

    def close(self, id: str) -> None:
        self.endpoint.close(id)


def serve_policy(
    env: ProgramEnvironment, engine: Engine, tokenizer: Tokenizer, settings: RolloutSettings, seed: int, order: str
) -> ServedEpisode:
    """The policy, as the environment's programs speak with it."""
    return ServedEpisode(
        engine,
        tokenizer,
        settings.sampling,
        seed,
        order=order,
        parser=settings.parser,
        strategy=settings.strategy,
        most_requests=env.max_turns,
        trains=env.trains,
    )


async def run_program(
    env: ProgramEnvironment,
    task: Task,
    episode: ServedEpisode,
    door: Door,
    *,
    id: str,
    seed: int,
    version: int = 0,
    deadline_s: float = 3600.0,
) -> Trajectory:
    """Plays one episode. As run_episode: a trajectory for every ending, EpisodeDefect for what is not supposed to
    happen."""
    blank = Trajectory(id, task, seed, version, (), (), "infra_error", {}, (), {}, 0.0, time.time(), 0.0)
    clock = time.monotonic()

    def record(**outcome: Any) -> Trajectory:
        turns = episode.turns(time.monotonic())
        tools = next((exchange.tools for exchange in episode.exchanges if exchange.tools), ())
        seen: dict[str, Any] = {
            "turns": turns,
            "branches": episode.branches(),
            "turn_rewards": ({},) * len(turns),
            "tools": tools,
        }
        return replace(blank, seconds=time.monotonic() - clock, **seen, **outcome)

    address = door.open(id, episode)
    try:
        try:
            ending, score, crash = await _play(env, task, seed, episode, address, deadline_s)
        finally:
            door.close(id)
        reward = weighted_reward(score.rewards, (), env.reward_weights, env.turn_reward_mode)
        success = measured_success(env, score.metrics, score.rewards)
    except InfraError as error:
        return record(error=with_place(error))
    except EngineFailed as error:
        raise EpisodeDefect(error.problem, error.fix, record(error=error.problem)) from error
    except Exception as error:
        raise EpisodeDefect(
            f"Environment {env.name!r}, task {task.id!r}: {said_of(error)}",
            getattr(error, "fix", "") or DEFECT_FIX,
            record(error=f"defect: {''.join(traceback.format_exception(error))}"),
        ) from error
    first = episode.exchanges[0].asked if episode.exchanges else clock
    own = {
        "seconds_opening": first - clock,
        "seconds_scoring": 0.0,
        "turns": len(episode.exchanges),
        "crashed": float(bool(crash)),
        **episode.metrics(),
    }
    return record(
        ending=ending,
        rewards=dict(score.rewards),
        reward=reward,
        metrics={**success, **score.metrics, **own},
        error=crash,
    )


async def run_agent(
    env: Environment, task: Task, agent: Agent, *, deadline_s: float = 3600.0, **more: Any
) -> Trajectory:
    """One episode, in any environment, by an agent that is no policy of ours: a script."""
    if not isinstance(env, ProgramEnvironment):
        return await run_episode(env, task, agent, deadline_s=deadline_s, **more)
    async with Door() as door:
        served = ServedAgent(agent, env.max_turns)
        return await run_program(env, task, served, door, deadline_s=deadline_s, **more)


async def _play(
    env: ProgramEnvironment, task: Task, seed: int, episode: ServedEpisode, address: Address, deadline_s: float
) -> tuple[Ending, Score, str]:
    """How it ended, what it was worth, and what the program's crash said."""
    nothing = Score(dict.fromkeys(env.reward_weights, 0.0), {env.success: 0.0} if env.success else {})
    ending: Ending = "done"
    try:
        with waiting(f"the program of task {task.id}", f"environment {env.name}", deadline_s):
            score = await within(deadline_s, "the program", env.play(task, seed, address))
        crash = ""
    except OutOfTime as error:
        ending, score, crash = "deadline", nothing, ""
        asked_nothing = f"{error}, and it had asked nothing"
    except ProgramCrashed as error:
        score, crash = nothing, str(error)
        asked_nothing = f"the program failed before it had asked anything: {error}"
    else:
        asked_nothing = (
            "the program ended without having asked the policy anything: it must use OPENAI_BASE_URL and "
            "OPENAI_API_KEY, or the client that it is given"
        )
    if episode.trouble is not None:  # whatever the program made of it
        raise _spoilt(episode.trouble)
    if not episode.exchanges and not episode.full:
        raise InfraError(asked_nothing)
    if ending == "done" and (episode.full or episode.spent):
        ending = "context_full" if episode.full else "max_turns"
    return ending, score, crash


def _spoilt(trouble: Exception) -> Exception:
    """A failed engine ends the run; anything else spoils the episode."""
    if isinstance(trouble, EngineFailed | InfraError):
        return trouble
    spoilt = InfraError(f"a request could not be answered: {type(trouble).__name__}: {trouble}")
    spoilt.__cause__ = trouble
    return spoilt


# --- looking on, and other models ------------------------------------------------------------------------------


class _FirstOnly(ServedAgent):
    """Notes the first request and answers none."""

    def __init__(self) -> None:
        super().__init__(Silent())
        self.asked_first: asyncio.Future[ChatRequest] = asyncio.get_running_loop().create_future()

    async def chat(self, request: ChatRequest, live: Live | None = None) -> Answer:
        if not self.asked_first.done():
            self.asked_first.set_result(request)
        raise BadRequest("Only the first request was wanted.", code="only_looking")


class FirstRequest(Session):
    """What a program asks first: the prompt of its episode."""

    def __init__(self, env: ProgramEnvironment[Any], task: Task, seed: int) -> None:
        self._env, self._task, self._seed = env, task, seed

    async def begin(self) -> Opening:
        told = _FirstOnly()
        async with Door() as door:
            played = self._env.play(self._task, self._seed, door.open("look", told))
            playing = asyncio.ensure_future(within(OPENING_S, "the program", played))
            either: set[asyncio.Future[Any]] = {playing, told.asked_first}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:  # whoever looks may have no more time
                playing.cancel()
                (ended,) = await asyncio.gather(playing, return_exceptions=True)
        if not told.asked_first.done():
            said = f": {ended}" if isinstance(ended, Exception) else ""
            raise InfraError(f"the program of task {self._task.id} asked nothing{said}")
        request = told.asked_first.result()
        return Opening(tuple(Message(**m) for m in request.messages), request.tools)  # type: ignore[typeddict-item]

    async def act(self, action: Action) -> Observation:
        raise InfraError("a program's episode is its own: it cannot be played from outside")

    async def finish(self) -> Score:
        return Score(dict.fromkeys(self._env.reward_weights, 0.0))
