"""Episodes that programs play: their endings, their tokens, and what of them is trained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import httpx
import pytest
from support.endpoint_world import CALL, CHAT, TOOL, Recorded, trained_is_sampled, user

from airloop.engine.base import EngineFailed, Sampling
from airloop.errors import AirError
from airloop.programs.client import AsyncClient
from airloop.programs.client import Client as PlainClient
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.episode import EpisodeDefect
from airloop.rollout.program import Address, EmptyReplies, LostConnection, ProgramCrashed, ProgramEnvironment
from airloop.rollout.sampler import Sampler
from airloop.serve import connections
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.types import Message, Score, Task, Trajectory

Program = Callable[["Client"], Awaitable[Any]]


class Client:
    """A program's, in this process: the door is real."""

    def __init__(self, address: Address) -> None:
        self.http = httpx.AsyncClient(
            base_url=address.base_url, headers={"Authorization": f"Bearer {address.api_key}"}, timeout=30
        )

    async def ask(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self.http.post("/chat/completions", json={"messages": list(messages), **more})
        if answer.status_code != 200:
            raise ProgramCrashed(answer.text)
        return answer.json()["choices"][0]["message"]  # type: ignore[no-any-return]


class ProgramsEnv(ProgramEnvironment):
    name: ClassVar[str] = "programs"
    reward_weights = {"score": 1.0}  # noqa: RUF012
    success: ClassVar[str | None] = "score"
    requests = 8

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    @property
    def max_turns(self) -> int:
        return self.requests

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(self.name, "one", split, {"x": 1})]

    async def play(self, task: Task, seed: int, address: Address) -> Score:
        client = Client(address)
        try:
            return Score({"score": float(await self.program(client))})
        finally:
            await client.http.aclose()


def play(
    program: Program, engine: Any = None, env: ProgramsEnv | None = None, **more: Any
) -> tuple[Trajectory, Recorded]:
    """One episode in a sampler; a spoilt one is returned, too."""
    env = env or ProgramsEnv(program)
    engine = engine or Recorded()
    settings = RolloutSettings(Sampling(max_tokens=200), 1, retries=0, **more)
    saved: list[Trajectory] = []
    sampler = Sampler(engine, CHAT, {"programs": env}, settings, lambda t, _: saved.append(t))
    asyncio.run(sampler.evaluate([Task("programs", "one", "test", {"x": 1})]))
    return saved[0], engine


def test_a_conversation_is_an_episode() -> None:
    async def program(client: Client) -> float:
        first = await client.ask(user("one"))
        await client.ask(user("one"), first, user("two"))
        return 0.75

    played, engine = play(program)
    assert (played.ending, played.reward, len(played.turns)) == ("done", 0.75, 2)
    assert [m["content"] for m in list(played.conversations())[1] if m["role"] == "user"] == ["one", "two"]
    assert len(played.branches) == 1 and played.metrics["success"] == 0.75
    assert played.metrics["requests"] == 2 and played.metrics["crashed"] == 0
    assert set(played.branches[0].turns) == {-1, 0, 1}
    trained_is_sampled(engine, played)


def test_what_a_client_wishes_of_sampling_is_kept_beside_what_it_got() -> None:
    async def program(client: Client) -> float:
        await client.ask(user("one"), temperature=0.2, top_p=0.5)
        await client.ask(user("two"), temperature=0.6)
        return 1.0

    played, _ = play(program)
    assert played.metrics["asked_temperature"] == pytest.approx(0.4) and played.metrics["asked_top_p"] == 0.5


def test_agents_side_by_side_are_lines_of_one_episode() -> None:
    async def program(client: Client) -> float:
        plan = await client.ask({"role": "system", "content": "You plan."}, user("go"))
        works = [[{"role": "system", "content": f"You are worker {i}."}, user(str(plan["content"]))] for i in range(3)]
        await asyncio.gather(*(client.ask(*work) for work in works))
        return 1.0

    played, engine = play(program)
    assert len(played.branches) == 4 and len(played.turns) == 4 and played.metrics["conversations"] == 4
    trained_is_sampled(engine, played)


@pytest.mark.parametrize(("trains", "turns"), [("all", {0, 1, 2}), ("main", {0, 2}), ("worker", {1})])
def test_only_the_replies_that_are_wanted_are_trained(trains: str, turns: set[int]) -> None:
    async def program(client: Client) -> float:
        chief = {"role": "system", "content": "You plan."}
        plan = await client.ask(chief, user("go"))
        await client.ask({"role": "system", "content": "You are a worker."}, user("do"))
        await client.ask(chief, user("go"), plan, user("done"))
        return 1.0

    class Chosen(ProgramsEnv):
        def trains(self, messages: Sequence[Message], first: Sequence[Message]) -> bool:
            return trains == "all" or (messages[0] == first[0] if trains == "main" else "worker" in str(messages[0]))

    played, _ = play(program, env=Chosen(program))
    assert len(played.turns) == 3
    own = {turn for branch in played.branches for turn, on in zip(branch.turns, branch.train, strict=True) if on}
    assert own == turns


def test_calls_of_tools_are_its_actions() -> None:
    async def program(client: Client) -> float:
        said = await client.ask(user("look"), tools=[TOOL], tool_choice="required")
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a door"}
        await client.ask(user("look"), said, result, tools=[TOOL])
        return 1.0

    played, engine = play(program, Recorded(lambda prompt, seed: "a door" if "a door" in prompt else CALL))
    assert [(a.kind, a.name) for a in played.turns[0].actions] == [("tool", "look")] and played.tools == (TOOL,)
    trained_is_sampled(engine, played)


async def _asks_for_ever(client: Client) -> float:
    while True:
        await client.ask(user("again"))


async def _asks_nothing(client: Client) -> float:
    return 1.0


async def _fails_at_once(client: Client) -> float:
    raise ProgramCrashed("ValueError: no")


async def _fails_later(client: Client) -> float:
    await client.ask(user("x"))
    raise ProgramCrashed("ValueError: no")


async def _asks_once(client: Client) -> float:
    await client.ask(user("x"))
    return 1.0


async def _sleeps(client: Client) -> float:
    await client.ask(user("x"))
    await asyncio.sleep(100)
    return 1.0


async def _sleeps_without_asking(client: Client) -> float:
    await asyncio.sleep(100)
    return 1.0


@pytest.mark.parametrize(
    ("program", "ending", "error", "crashed"),
    [
        (_asks_for_ever, "max_turns", "max_requests_exceeded", 1.0),
        (_fails_later, "done", "ValueError: no", 1.0),
        (_sleeps, "deadline", "", 0.0),
        (_sleeps_without_asking, "infra_error", "it had asked nothing", None),
        (_asks_nothing, "infra_error", "without having asked", None),
        (_fails_at_once, "infra_error", "before it had asked anything: ValueError: no", None),
    ],
)
def test_every_ending_is_told(program: Program, ending: str, error: str, crashed: float | None) -> None:
    played, _ = play(program, deadline_s=5.0 if "sleeps" in program.__name__ else 60.0)
    assert played.ending == ending and error in played.error and played.reward == 0.0
    assert played.metrics.get("crashed") == crashed


def test_a_full_context_is_told_to_the_program_and_of_the_episode() -> None:
    async def program(client: Client) -> float:
        await client.ask(user("short"))
        with pytest.raises(ProgramCrashed, match="context_length_exceeded"):
            await client.ask(user("x" * 500))
        return 0.5

    played, _ = play(program, Recorded(context=300))
    assert (played.ending, played.reward) == ("context_full", 0.5)


def test_who_makes_room_in_a_full_context_and_goes_on_has_not_ended_in_it() -> None:
    async def program(client: Client) -> float:
        await client.ask(user("short"))
        with pytest.raises(ProgramCrashed, match="context_length_exceeded"):
            await client.ask(user("x" * 500))
        await client.ask(user("in short"))
        return 0.5

    played, _ = play(program, Recorded(context=300))
    assert (played.ending, played.reward, len(played.turns)) == ("done", 0.5, 2)


def test_a_request_that_is_under_way_when_the_episode_ends_is_given_up() -> None:
    class Slow(Recorded):
        async def generate(self, token_ids: Any, sampling: Any, order: str = "") -> Any:
            if len(self.pairs) == 1:
                await asyncio.sleep(100)
            return await super().generate(token_ids, sampling, order)

    async def program(client: Client) -> float:
        await client.ask(user("x"))
        client.left = asyncio.ensure_future(client.http.post("/chat/completions", json={"messages": [user("y")]}))  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)
        return 1.0

    played, engine = play(program, Slow())
    assert played.ending == "done" and len(played.turns) == 1
    trained_is_sampled(engine, played)


def test_a_wrong_score_stops_the_run_with_the_episode() -> None:
    async def program(client: Client) -> float:
        await client.ask(user("x"))
        return float("nan")

    with pytest.raises(EpisodeDefect, match="score") as defect:
        play(program)
    assert len(defect.value.trajectory.turns) == 1


def test_another_model_may_stand_in_for_the_policy() -> None:
    async def program(client: Client) -> float:
        first = await client.ask(user("one"))
        second = await client.ask(user("one"), first, user("two"))
        return float(first["content"] == second["content"] == "")

    env = ProgramsEnv(program)
    sampler = Sampler(None, None, {"programs": env}, RolloutSettings(Sampling(max_tokens=50), 1), lambda t, _: None)
    plan = [Task("programs", "one", "test", {"x": 1})]
    (played,) = asyncio.run(sampler.evaluate(plan, lambda env, task, seed: EmptyReplies())).trajectories
    assert played.reward == 1.0 and played.branches == () and len(played.turns) == 2


def test_what_a_program_asks_first_can_be_looked_at() -> None:
    async def look(program: Program) -> Any:
        async with ProgramsEnv(program).open(Task("programs", "one", "test"), 0) as session:
            return await session.begin()

    async def program(client: Client) -> float:
        await client.ask(user("first"), tools=[TOOL])
        return 1.0

    opening = asyncio.run(look(program))
    assert opening.messages[-1]["content"] == "first" and opening.tools == (TOOL,)
    with pytest.raises(AirError, match="asked nothing"):
        asyncio.run(look(_asks_nothing))


@pytest.mark.parametrize("later", [False, True])
def test_the_client_that_needs_nothing_asks_and_echoes(later: bool) -> None:
    async def program(client: Client) -> float:
        at = {"base_url": str(client.http.base_url), "api_key": client.http.headers["Authorization"][7:]}
        said: list[Any] = [user("one")]
        for _ in range(2):
            own: Any = AsyncClient(**at) if later else PlainClient(**at)
            asked = {"messages": said, "tools": [TOOL]}
            ask = own.chat.completions.create
            reply = await ask(**asked) if later else await asyncio.to_thread(ask, **asked)
            message = reply.choices[0].message
            assert message.tool_calls is None and message["role"] == "assistant"
            said += [message, user("two")]
        with pytest.raises(RuntimeError, match="400"):
            await asyncio.to_thread(PlainClient(**at).create, messages=[])
        return float(reply.usage.completion_tokens > 0)

    played, engine = play(program)
    assert played.reward == 1.0 and len(played.branches) == 1
    trained_is_sampled(engine, played)


class Breaks(Recorded):
    """Its second answer is trouble."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def generate(self, token_ids: Any, sampling: Any, order: str = "") -> Any:
        if self.pairs:
            raise self.error
        return await super().generate(token_ids, sampling, order)


@pytest.mark.parametrize("swallowed", [False, True])
def test_trouble_of_the_machinery_is_never_a_score(swallowed: bool) -> None:
    async def program(client: Client) -> float:
        await client.ask(user("x"))
        try:
            await client.ask(user("y"))
        except ProgramCrashed:
            if not swallowed:
                raise
        return 1.0

    played, _ = play(program, Breaks(RuntimeError("CUDA error")))
    assert played.ending == "infra_error" and "CUDA error" in played.error
    with pytest.raises(EpisodeDefect, match="the engine is gone"):
        play(program, Breaks(EngineFailed("the engine is gone", "look")))


async def _gives_up_waiting(client: Client, heard: asyncio.Event) -> None:
    """As soon as the policy has been asked."""
    asking = asyncio.ensure_future(client.ask(user("y")))
    await heard.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("seen", [False, True])
def test_a_connection_that_is_lost_is_trouble_where_it_was_that_to_the_policy(seen: bool) -> None:
    class Slow(Recorded):
        async def generate(self, token_ids: Any, sampling: Any, order: str = "") -> Any:
            if self.pairs:
                heard.set()
                await asyncio.sleep(60)
            return await super().generate(token_ids, sampling, order)

    heard = asyncio.Event()

    async def program(client: Client) -> float:
        await client.ask(user("x"))
        if seen:
            await _gives_up_waiting(client, heard)
        raise LostConnection("ConnectionRefusedError: no such host")

    played, _ = play(program, Slow())
    assert played.ending == ("infra_error" if seen else "done") and "no such host" in played.error
    assert played.metrics.get("crashed") == (None if seen else 1.0) and played.reward == 0.0


@pytest.mark.parametrize(("crashes", "ending"), [(True, "infra_error"), (False, "done")])
def test_a_crash_where_there_was_no_room_for_a_connection_is_trouble(
    crashes: bool, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Endpoint.open

    def open_and_refuse(endpoint: Endpoint, id: str, episode: ServedEpisode) -> str:
        key = opened(endpoint, id, episode)
        endpoint.crowded()
        return key

    monkeypatch.setattr(Endpoint, "open", open_and_refuse)
    played, _ = play(_fails_later if crashes else _asks_once)
    assert played.ending == ending and ("no room" in played.error) == crashes


@pytest.mark.parametrize("retried", [False, True])
def test_a_request_that_there_was_no_room_for_and_that_was_never_answered_is_trouble_whatever_its_agent_makes_of_it(
    retried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda limit: 4)

    class Full(Recorded):
        """Answers nobody until it is told to."""

        async def generate(self, *given: Any, **more: Any) -> Any:
            self.orders.append("")
            if len(self.orders) == 4:
                full.set()
            await free.wait()
            return await super().generate(*given, **more)

    async def program(client: Client) -> float:
        under_way = [asyncio.ensure_future(client.ask(user(f"part {i}"))) for i in range(4)]
        await full.wait()
        with pytest.raises(ProgramCrashed, match="too many connections"):
            await client.ask(user("the last one"))
        free.set()
        await asyncio.gather(*under_way)
        if retried:
            await client.ask(user("the last one"))
        return 1.0

    full, free = asyncio.Event(), asyncio.Event()
    played, engine = play(program, Full())
    if retried:
        assert played.ending == "done" and played.reward == 1.0 and len(engine.pairs) == 5
    else:
        assert played.ending == "infra_error" and "had no room for a request" in played.error


def test_a_crash_has_a_success_of_nothing_whatever_it_is_called() -> None:
    class Other(ProgramsEnv):
        success: ClassVar[str | None] = "correct"

    played, _ = play(_fails_later, env=Other(_fails_later))
    assert played.ending == "done" and played.metrics["success"] == 0.0


def test_the_main_conversation_is_the_one_that_was_asked_first_not_answered_first() -> None:
    class SlowChief(Recorded):
        async def generate(self, token_ids: Any, sampling: Any, order: str = "") -> Any:
            if "You plan" in CHAT.decode(token_ids):
                asked.set()
                await answered.wait()
            return await super().generate(token_ids, sampling, order)

    asked, answered = asyncio.Event(), asyncio.Event()

    async def program(client: Client) -> float:
        chief = asyncio.ensure_future(client.ask({"role": "system", "content": "You plan."}, user("go")))
        await asked.wait()
        await client.ask({"role": "system", "content": "You work."}, user("do"))
        answered.set()
        await chief
        return 1.0

    class Main(ProgramsEnv):
        def trains(self, messages: Sequence[Message], first: Sequence[Message]) -> bool:
            return messages[0] == first[0]

    played, _ = play(program, SlowChief(), env=Main(program))
    (branch,) = played.branches
    assert "You plan" in CHAT.decode(branch.tokens)
    assert [turn.sampled is not None for turn in played.turns] == [False, True]
