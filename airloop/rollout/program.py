"""Episodes of agents that are programs: any agent that calls the policy over HTTP, as it would call any model.

The program gets an address and a key of its own episode. Its requests and their replies are kept as tokens
(airloop.chat.forest), so what is trained is what was sampled, in the context it was sampled in; the program returns the
episode's score.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airloop.chat.forest import Tokenizer
from airloop.engine.base import Engine, EngineDowntime, EngineFailed
from airloop.envs.base import A, ActionFormat, Environment, Opening, Session
from airloop.errors import AirError, InfraError
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.deadline import OutOfTime, added_by, within
from airloop.rollout.episode import (
    unfinished,
    weighted_reward,
)
from airloop.serve.answer import Answer
from airloop.serve.app import Endpoint
from airloop.serve.chat_form import BadRequest, ChatRequest
from airloop.serve.episode import ServedEpisode
from airloop.serve.served_agent import ServedAgent
from airloop.serve.server import serving
from airloop.serve.stable_prefix import StreamListener
from airloop.success import measured_success
from airloop.types import Action, Agent, Ending, Message, Observation, Score, Task, Trajectory
from airloop.waits import waiting

MODEL = "policy"  # its name at the endpoint; programs may send any other
# Metrics that every episode of a program has already: a score of the same name would be lost.
MEASURED = (
    *("reward", "turns", "crashed", "requests", "requests_abandoned", "conversations"),
    *("sampled_tokens", "length_stops", "cached_share", "seconds_opening", "seconds_scoring", "scored_together"),
)
OPENING_S = 120.0  # for a program's first request, where only that is wanted
# Whoever starts a program holds it to its seconds, and cannot give it more. Where so much of them was not its own, how
# far it came says nothing of the agent.
DOWNTIME_SHARE = 0.25
LOOK_S = 600.0  # with all that it takes to have the program


@dataclass(frozen=True)
class Address:
    """Where a program reaches the policy: what OPENAI_BASE_URL and OPENAI_API_KEY are."""

    base_url: str
    api_key: str
    model: str = MODEL
    seconds: float = 3600.0  # that the program has
    episode: str = ""  # its id, which the program is not told

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


@dataclass(frozen=True, slots=True)
class ProgramOutcome(Score):
    """A score with how the program ended: of programs that do not score themselves."""

    ending: Ending = "done"
    crash: str = ""
    scoring_s: float = 0.0


class ProgramCrashed(Exception):
    """The agent's own program failed after the policy had spoken: its ending, with the score of nothing done."""


class LostConnection(InfraError):
    """The agent's own program failed for want of a connection: trouble if it was that to the policy, and else its
    ending, for it may have been told to ask anybody."""


class ProgramEnvironment(Environment[A]):
    """An environment whose episodes are played by programs. `name`, `tasks` and `play` must be given."""

    action_format: ActionFormat = "text"  # type: ignore[misc]  # its program reads replies by itself
    # How a program could be cheated nobody but its author knows; the audit has six scripts that need not.
    dishonest: ClassVar[tuple[str, ...]] = ("noop",)
    # That `play` may take for the score once the episode's own time is over; 0 where the program scores itself.
    finish_s: float = 0.0

    @abstractmethod
    async def play(self, task: Task, seed: int, address: Address) -> Score:
        """One episode, from the program's start to its end. ProgramCrashed is the agent's own ending, InfraError
        trouble of the machinery; cancelled, it must leave no program behind. An environment that
        scores what its programs leave returns ProgramOutcome."""

    @property
    def scores_groups(self) -> bool:
        """Whether episodes of a task are scored together, when the last of them has ended (`score_group`). Of such an
        environment `play` gives a score without rewards."""
        return False

    async def score_group(self, episodes: Sequence[str]) -> Sequence[Score]:
        """What each of these was worth beside the others; they are named by `Address.episode`. InfraError is trouble of
        the machinery: asked again, and then these episodes are lost."""
        raise NotImplementedError(f"{type(self).__name__} scores every episode by itself")

    def forget(self, episodes: Sequence[str]) -> None:
        """Frees what was kept of these episodes: their group has ended."""
        return None

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
            return EmptyReplies()
        raise AirError(
            f"The environment {self.name!r} has no script {name!r}: its agent is a program.",
            "scripts stand in for the model; only noop, a model that says nothing, is known of every program.",
        )


class EmptyReplies:
    """A model whose replies are all empty."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message(role="assistant", content="")


class EpisodeEndpoint:
    """An HTTP endpoint for the episodes of one collection; programs of an earlier collection have another address."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(MODEL)
        self._serving = serving(self.endpoint.app(), crowded=self.endpoint.crowded)
        self._url = ""

    async def __aenter__(self) -> EpisodeEndpoint:
        self._url = await self._serving.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._serving.__aexit__(*error)

    def open(self, id: str, episode: ServedEpisode, seconds: float = OPENING_S) -> Address:
        return Address(f"{self._url}/e/{id}/v1", self.endpoint.open(id, episode), seconds=seconds, episode=id)

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
    endpoint: EpisodeEndpoint,
    *,
    id: str,
    seed: int,
    version: int = 0,
    deadline_s: float = 3600.0,
    downtime: EngineDowntime | None = None,
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

    address = endpoint.open(id, episode, deadline_s)
    try:
        try:
            outcome = await _play(env, task, seed, episode, address, added_by(downtime))
        finally:
            endpoint.close(id)
        reward = weighted_reward(outcome.rewards, (), env.reward_weights, env.turn_reward_mode)
        waits = env.scores_groups and not outcome.rewards  # for the others of its group
        success = {} if waits else measured_success(env, outcome.metrics, outcome.rewards)
    except Exception as error:
        return unfinished(error, env, task, record)
    first = episode.exchanges[0].asked_at if episode.exchanges else clock
    own = {
        "seconds_opening": first - clock,
        "seconds_scoring": outcome.scoring_s,
        "turns": len(episode.exchanges),
        "crashed": float(bool(outcome.crash)),
        **episode.metrics(),
    }
    return record(
        ending=outcome.ending,
        rewards=dict(outcome.rewards),
        reward=reward,
        metrics={**success, **outcome.metrics, **own},
        error=outcome.crash,
    )


async def _play(
    env: ProgramEnvironment,
    task: Task,
    seed: int,
    episode: ServedEpisode,
    address: Address,
    added: Callable[[], float],
) -> ProgramOutcome:
    nothing = Score(dict.fromkeys(env.reward_weights, 0.0), {env.success: 0.0} if env.success else {})
    longest_s = address.seconds + env.finish_s
    end = time.monotonic() + longest_s
    asked_nothing = (
        "the program ended without having asked the policy anything: it must use OPENAI_BASE_URL and "
        "OPENAI_API_KEY, or the client that it is given"
    )
    try:
        with waiting(f"the program of task {task.id}", f"environment {env.name}", longest_s):
            playing = env.play(task, seed, address)
            score = await within(longest_s, "the program", playing, lambda: end + added() - time.monotonic())
        outcome = score if isinstance(score, ProgramOutcome) else ProgramOutcome(score.rewards, score.metrics)
    except OutOfTime as error:
        outcome = ProgramOutcome(nothing.rewards, nothing.metrics, "deadline")
        asked_nothing = f"{error}, and it had asked nothing"
    except LostConnection as error:
        if episode.lost or not episode.exchanges:
            raise
        outcome = ProgramOutcome(nothing.rewards, nothing.metrics, crash=str(error))
    except ProgramCrashed as error:
        outcome = ProgramOutcome(nothing.rewards, nothing.metrics, crash=str(error))
    if outcome.crash:
        asked_nothing = f"the program failed before it had asked anything: {outcome.crash}"
    if episode.failure is not None:  # whatever the program made of it
        raise _infra_failure(episode.failure)
    if episode.refusals.unanswered:  # likewise: without the reply, how well it did says nothing
        crash = f": {outcome.crash}" if outcome.crash else ""
        raise InfraError(f"the endpoint had no room for a request of this program's, and never answered it{crash}")
    if outcome.crash and episode.refusals.crowded:
        raise InfraError(f"the endpoint had no room for all connections, perhaps for this program's: {outcome.crash}")
    if outcome.ending == "deadline" and (lost_s := added()) > DOWNTIME_SHARE * address.seconds:
        raise InfraError(f"for {lost_s:.0f} of the program's {address.seconds:.0f} s the engine could serve nobody")
    if not episode.exchanges and not episode.context_full:
        raise InfraError(asked_nothing)
    if outcome.ending == "done" and (episode.context_full or episode.requests_exceeded):
        outcome = replace(outcome, ending="context_full" if episode.context_full else "max_turns")
    return outcome


def _infra_failure(error: Exception) -> Exception:
    """The exception to raise: a failed engine ends the run, anything else is an infrastructure failure of the
    episode."""
    if isinstance(error, EngineFailed | InfraError):
        return error
    failure = InfraError(f"a request could not be answered: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


# --- the first request ------------------------------------------------------------------------------


class _FirstRequestRecorder(ServedAgent):
    """Records the first request and answers none."""

    def __init__(self) -> None:
        super().__init__(EmptyReplies())
        self.asked_first: asyncio.Future[ChatRequest] = asyncio.get_running_loop().create_future()

    async def chat(self, request: ChatRequest, listener: StreamListener | None = None) -> Answer:
        if not self.asked_first.done():
            self.asked_first.set_result(request)
        raise BadRequest("Only the first request was wanted.", code="only_looking")


class FirstRequest(Session):
    """What a program asks first: the prompt of its episode."""

    def __init__(self, env: ProgramEnvironment[Any], task: Task, seed: int) -> None:
        self._env, self._task, self._seed = env, task, seed

    async def begin(self) -> Opening:
        recorder = _FirstRequestRecorder()
        async with EpisodeEndpoint() as endpoint:
            address = endpoint.open("look", recorder)
            program = self._env.play(self._task, self._seed, address)
            longest_s = min(address.seconds + self._env.finish_s, LOOK_S)
            playing = asyncio.ensure_future(within(longest_s, "the program", program))
            either: set[asyncio.Future[Any]] = {playing, recorder.asked_first}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:  # also where this is cancelled
                playing.cancel()
                (ended,) = await asyncio.gather(playing, return_exceptions=True)
                self._env.forget([address.episode])
        if not recorder.asked_first.done():
            if isinstance(ended, AirError):
                raise ended
            said = f": {ended}" if isinstance(ended, Exception) else ""
            raise AirError(
                f"The program of task {self._task.id} asked nothing{said}".rstrip(".") + ".",
                "mend the agent's program: it must ask the policy, at OPENAI_BASE_URL or by the client that it gets; "
                "one that is async must await the answers.",
            )
        request = recorder.asked_first.result()
        return Opening(tuple(Message(**m) for m in request.messages), request.tools)  # type: ignore[typeddict-item]

    async def act(self, action: Action) -> Observation:
        raise InfraError("a program's episode is its own: it cannot be played from outside")

    async def finish(self) -> Score:
        return Score(dict.fromkeys(self._env.reward_weights, 0.0))
