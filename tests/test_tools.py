"""`@airloop.tool`: schema and dispatch of a session's methods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import airloop
from airloop import Action, AirError, Environment, Message, Observation, Score, Session, Task
from airloop.envs.base import ActionFormat
from airloop.envs.tools import ToolSession, tool, tools_of
from airloop.rollout.episode import EpisodeDefect, run_episode


class Place(BaseModel):
    shelf: int
    title: str = ""


class Shop(ToolSession):
    def __init__(self) -> None:
        self.sold = 0

    def prompt(self) -> str:
        return "Sell two."

    @tool
    def look(self, shelf: Annotated[int, "from 1 on"], how: Literal["near", "far"] = "near") -> str:
        """Says what is on a shelf."""
        return f"{how} {shelf + 1}"

    @tool
    async def sell(self, places: list[Place]) -> Observation:
        self.sold += len(places)
        return Observation(f"sold {self.sold}", done=self.sold >= 2)

    @tool
    def count(self) -> dict[str, int]:
        return {"sold": self.sold}

    def not_a_tool(self) -> str:
        return ""

    async def finish(self) -> Score:
        return Score({"sold": float(self.sold)}, {"sold": min(1.0, self.sold / 2)})


class ShopEnv(Environment):
    name: ClassVar[str] = "shop"
    action_format: ClassVar[ActionFormat] = "tools"
    success: ClassVar[str | None] = "sold"

    @property
    def max_turns(self) -> int:
        return 4

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(self.name, "0", split)]

    def open(self, task: Task, seed: int) -> Session:
        return Shop()


class Says:
    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Any]) -> Message:
        return Message(role="assistant", content=self.replies.pop(0))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def act(session: Session, name: str, **arguments: Any) -> Observation:
    return asyncio.run(session.act(Action("tool", name=name, arguments=arguments)))


def test_the_schema_is_that_of_the_types() -> None:
    opening = asyncio.run(Shop().begin())
    assert [one["function"]["name"] for one in opening.tools] == ["look", "sell", "count"]
    assert opening.messages == ({"role": "user", "content": "Sell two."},)
    look, sell, count = opening.tools
    assert look == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Says what is on a shelf.",
            "parameters": {
                "type": "object",
                "properties": {
                    "shelf": {"type": "integer", "description": "from 1 on"},
                    "how": {"type": "string", "enum": ["near", "far"], "default": "near"},
                },
                "required": ["shelf"],
                "additionalProperties": False,
            },
        },
    }
    place = sell["function"]["parameters"]["$defs"]["Place"]
    assert set(place["properties"]) == {"shelf", "title"}, "a property may be called title"
    assert count["function"]["parameters"] == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_call_is_checked_and_answered() -> None:
    shop = Shop()
    assert act(shop, "look", shelf=3) == Observation("near 4")
    assert act(shop, "look", shelf="3", how="far") == Observation("far 4"), "what can be read as a number is one"
    assert act(shop, "count") == Observation('{"sold": 0}')
    assert act(shop, "sell", places=[{"shelf": 1}, {"shelf": 2}]) == Observation("sold 2", done=True)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("look", {}, "shelf is missing"),
        ("look", {"shelf": "high"}, "shelf: Input should be a valid integer"),
        ("look", {"shelf": 1, "colour": "red"}, "colour is not known"),
        ("look", {"shelf": 1, "how": "away"}, "how: Input should be 'near' or 'far'"),
        ("sell", {"places": [{"shelf": 1}, {}]}, "places.1.shelf is missing"),
        ("buy", {}, "There is no tool 'buy'. Known: look, sell, count."),
        ("not_a_tool", {}, "There is no tool 'not_a_tool'"),
    ],
)
def test_a_wrong_call_is_answered_and_nothing_is_called(name: str, arguments: dict[str, Any], said: str) -> None:
    shop = Shop()
    answer = act(shop, name, **arguments)
    assert answer.failed and said in answer.text and shop.sold == 0


VALUES = st.integers() | st.text() | st.none() | st.lists(st.booleans())


@given(st.dictionaries(st.text(max_size=6) | st.sampled_from(["shelf", "how", "self"]), VALUES))
def test_no_arguments_raise(arguments: dict[str, Any]) -> None:
    answer = asyncio.run(Shop().act(Action("tool", name="look", arguments=arguments)))
    assert isinstance(answer.text, str) and answer.failed == (not answer.text.startswith(("near ", "far ")))


def test_a_subclass_defines_a_tool_anew_or_adds_one() -> None:
    class Larger(Shop):
        @tool
        def look(self, shelf: int) -> str:
            return "dark"

        @tool
        def leave(self) -> None: ...

    assert list(tools_of(Larger())) == ["look", "sell", "count", "leave"]
    assert act(Larger(), "look", shelf=1) == Observation("dark") and act(Larger(), "leave") == Observation("")


def test_an_episode_is_played_with_tools() -> None:
    agent = Says(call("look", shelf="x"), call("sell", places=[{"shelf": 1}]), call("sell", places=[{"shelf": 2}]))
    env = ShopEnv()
    played = asyncio.run(run_episode(env, env.tasks("train")[0], agent, id="a_pi0_1_0-0", seed=0))
    assert played.ending == "done" and played.reward == 2.0 and played.metrics["success"] == 1.0
    assert "look was not called" in played.turns[0].observations[0].text


@pytest.mark.parametrize(
    ("replies", "ending", "kept"),
    [
        ([call("look", shelf=1), "<think>far?</think> two"], "done", "two"),
        (["shelf 2", "never asked"], "done", "shelf 2"),
        ([call("look", shelf=1), "again", "enough"], "done", "enough"),
        (['<tool_call>{"name": </tool_call>', "sorry"], "done", "sorry"),  # broken, and not an answer
    ],
)
def test_a_reply_without_a_call_is_an_answer_where_one_is_taken(replies: list[str], ending: str, kept: str) -> None:
    class Answers(Shop):
        said = ""

        def answer(self, text: str) -> Observation | None:
            self.said = text
            return Observation("Again?") if text == "again" else None

        async def finish(self) -> Score:
            return Score({"sold": float(self.said == kept)}, {"sold": 1.0})

    class Asked(ShopEnv):
        def open(self, task: Task, seed: int) -> Session:
            return Answers()

    played = asyncio.run(run_episode(Asked(), Asked().tasks("train")[0], Says(*replies), id="a_pi0_1_0-0", seed=0))
    assert (played.ending, played.reward) == (ending, 1.0)
    assert played.turns[-1].actions == (Action("text", text=kept),)
    silent = asyncio.run(
        run_episode(ShopEnv(), Asked().tasks("train")[0], Says(*["two"] * 4), id="a_pi0_1_0-0", seed=0)
    )
    assert silent.ending == "max_turns" and silent.metrics["invalid_actions"] == 1.0, "as before where none is taken"


def test_a_tool_may_be_called_answer_and_an_answer_may_be_awaited() -> None:
    class Final(Shop):
        @tool
        def answer(self, value: int) -> str:  # type: ignore[override]
            return str(value)

    class Later(Shop):
        async def answer(self, text: str) -> Observation:  # type: ignore[override]
            return Observation(text.upper(), done=True)

    assert Final().plain_reply("two") is None and act(Final(), "answer", value=2) == Observation("2")
    said = asyncio.run(Later().act(Action("text", text="two")))
    assert said == Observation("TWO", done=True)


def test_a_session_with_tools_needs_an_environment_that_reads_calls() -> None:
    class Deaf(ShopEnv):
        action_format: ClassVar[ActionFormat] = "text"

    with pytest.raises(EpisodeDefect, match='needs action_format = "tools"'):
        asyncio.run(run_episode(Deaf(), Deaf().tasks("train")[0], Says(""), id="a_pi0_1_0-0", seed=0))


def test_what_cannot_be_a_tool_is_told_with_its_line() -> None:
    class Untyped(Shop):
        @tool
        def find(self, what) -> str:  # type: ignore[no-untyped-def]
            return ""

    class Starred(Shop):
        @tool
        def find(self, *what: str) -> str:
            return ""

    with pytest.raises(AirError, match=r"find \(.*test_tools.py:\d+\) does not say of what type 'what' is"):
        asyncio.run(Untyped().begin())
    with pytest.raises(AirError, match="arguments go by name"):
        asyncio.run(Starred().begin())


def test_the_function_stays_what_it_is() -> None:
    assert Shop().look(1, "far") == "far 2" and airloop.tool is tool
