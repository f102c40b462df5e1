"""Streams that begin before the reply is whole: they say what it says, to the byte, and nothing too early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.endpoint_world import CALL, CHAT, TOOL, Client, Recorded, episode_of, trained_pairs, user
from support.rollout_world import STOP

from airloop.engine.base import EngineFailed, Generation, Sampling
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.serve.server import serving
from airloop.serve.stable_prefix import StablePrefix

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
JSON_CALL = '{"name": "look", "arguments": {"at": 1}}'
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", JSON_CALL, CALL, "```json\n", "```", "<|python_tag|>"]
WORDS += ["é", "😀", "word", " ", "\n", "<", "{", "[", "`", "STOP", "ST", "OP", "hm", "<|im_end|>", "\t", "."]
piece = st.one_of(st.sampled_from([word.encode() for word in WORDS]), st.binary(min_size=1, max_size=3))


def thinking_chat() -> ChatTokenizer:
    hf = tiny_tokenizer()
    opens = "{{ '<|im_start|>assistant\\n<think>\\n' }}"
    hf.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}" + opens + "{% endif %}"
    )
    return ChatTokenizer(hf, name="thinks")


CHATS = {False: CHAT, True: thinking_chat()}


class Says(Recorded):
    """These bytes, each of which is a token."""

    def __init__(self, said: bytes, tokenizer: ChatTokenizer = CHAT, burst: int = 1) -> None:
        super().__init__(tokenizer=tokenizer)
        self.said, self.burst = said, burst

    def reply(self, token_ids: Sequence[int], sampling: Sampling) -> list[int]:
        return [*self.said, STOP]


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def joined_chat(said: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the chunks."""
    message: dict[str, Any] = {}
    for choice in (choice for chunk in said for choice in chunk["choices"]):
        for name, value in choice["delta"].items():
            if name == "tool_calls":
                value = [{k: v for k, v in call.items() if k != "index"} for call in value]
            known = message.get(name)
            message[name] = (
                known + value if known is not None and value is not None else value if known is None else known
            )
        message["finish"] = choice["finish_reason"] or message.get("finish")
    return message


def joined_messages(said: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    ending: dict[str, Any] = {}
    for one in said:
        if one["type"] == "content_block_start":
            assert one["index"] == len(blocks)
            blocks.append(dict(one["content_block"]))
        elif one["type"] == "content_block_delta":
            delta, block = one["delta"], blocks[one["index"]]
            assert one["index"] == len(blocks) - 1
            if "partial_json" in delta:
                block["input"] = json.loads(delta["partial_json"])
            for name in ("text", "thinking"):
                if name in delta:
                    block[name] += delta[name]
        elif one["type"] == "message_delta":
            ending = one["delta"]
    return {"content": blocks, **ending}


def joined_responses(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [one["sequence_number"] for one in said] == list(range(len(said)))
    items: list[dict[str, Any]] = []
    deltas: dict[int, str] = {}
    for one in said:
        if one["type"] == "response.output_text.delta":
            deltas[one["output_index"]] = deltas.get(one["output_index"], "") + one["delta"]
        elif one["type"] == "response.output_item.done":
            assert one["output_index"] == len(items)
            items.append(one["item"])
    for index, text in deltas.items():
        assert items[index]["content"][0]["text"] == text
    assert said[-1]["response"]["output"] == items
    return items


async def answers(path: str, engine: Says, stream: bool, body: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What a client makes of the answer, and what is trained of it."""
    endpoint = Endpoint("tiny")
    episode = ServedEpisode(engine, engine.tokenizer, Sampling(max_tokens=200), seed=5, order="0-0")
    endpoint.open("one", episode)
    given = await Client(endpoint).post({**body, "stream": stream}, path)
    assert given.status_code == 200, given.text
    kept = trained_pairs(episode)
    if path.endswith("messages"):
        whole = joined_messages(events_of(given.text)) if stream else given.json()
        return {name: whole[name] for name in ("content", "stop_reason", "stop_sequence")}, kept
    if path.endswith("responses"):
        items = joined_responses(events_of(given.text)) if stream else given.json()["output"]
        return [{k: v for k, v in item.items() if k != "id"} for item in items], kept
    if stream:
        return joined_chat(events_of(given.text)), kept
    choice = given.json()["choices"][0]
    return {**choice["message"], "finish": choice["finish_reason"]}, kept


def request(path: str, tools: bool, stops: list[str], most: int) -> dict[str, Any]:
    if path.endswith("responses"):
        own: dict[str, Any] = {"type": "function", "name": "look", "parameters": {}}
        return {"input": "a", "max_output_tokens": most, **({"tools": [own]} if tools else {})}
    if path.endswith("messages"):
        own = {"name": "look", "input_schema": {"type": "object"}}
        more: dict[str, Any] = {"stop_sequences": stops} if stops else {}
        return {"messages": [user("a")], "max_tokens": most, **more, **({"tools": [own]} if tools else {})}
    more = {"stop": stops} if stops else {}
    return {"messages": [user("a")], "max_tokens": most, **more, **({"tools": [TOOL]} if tools else {})}


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    said=st.lists(piece, max_size=12).map(b"".join),
    tools=st.booleans(),
    thinking=st.booleans(),
    stops=st.lists(st.sampled_from(["STOP", "ST", "OP.", "\n", "é", "<|im"]), max_size=2, unique=True),
    most=st.sampled_from([200, 200, 7]),
    burst=st.sampled_from([1, 1, 2, 9]),
    path=st.sampled_from(PATHS),
)
@example(b" I look.\n" + CALL.encode(), True, False, [], 200, 1, PATHS[0])
@example(b"first\n" + JSON_CALL.encode(), True, False, [], 200, 1, PATHS[1])
@example(b"hm</think>{" + JSON_CALL.encode(), True, True, [], 200, 1, PATHS[2])
@example(b"no </think>" + JSON_CALL.encode(), True, False, [], 200, 1, PATHS[0])
@example(b"", True, False, [], 200, 1, PATHS[2])
@example(f"two\n{CALL}\n{CALL}".encode(), True, False, [], 200, 1, PATHS[0])
@example(f"two\n{CALL}\n{CALL}".encode(), True, False, [], 200, 1, PATHS[1])
@example(f"<think>hm</think>two\n{CALL}\n{CALL}".encode(), True, False, [], 200, 1, PATHS[2])
def test_a_stream_says_what_the_whole_reply_says(
    said: bytes, tools: bool, thinking: bool, stops: list[str], most: int, burst: int, path: str
) -> None:
    body = request(path, tools, stops, most)

    async def both() -> tuple[Any, Any]:
        whole, streamed = (Says(said, CHATS[thinking], burst) for _ in range(2))
        return await answers(path, whole, False, body), await answers(path, streamed, True, body)

    whole, streamed = asyncio.run(both())
    assert whole == streamed


@pytest.mark.parametrize(
    ("said", "tools", "pieces"),
    [
        ("one two", False, ["o", "n", "e", " ", "t", "w", "o"]),
        ("one two", True, ["o", "n", "e", " t", "w", "o"]),  # white space may be what stands before a call
        ("é!", False, ["é", "!"]),
        ("a<b", True, ["a", "<b"]),
        ("a<b", False, ["a", "<", "b"]),
        (f"I.\n{CALL}", True, ["I", "."]),
        ("<think>hm</think>\n\nso it is", False, ["s", "o", " i", "t", " i", "s"]),
        ("<thin", False, []),
        ("aSTOPb", False, ["a"]),
        ("aSTIb", False, ["a", "STI", "b"]),
    ],
)
def test_what_is_certain_is_told_at_once(said: str, tools: bool, pieces: list[str]) -> None:
    reply = StablePrefix(CHAT, stops=["STOP"], tools=tools)
    heard = [reply.add_tokens([byte])[1] for byte in said.encode()]
    assert [text for text in heard if text] == pieces


class Held(Recorded):
    """Says its words one at a time, when it is told to."""

    def __init__(self, *words: str, fails: bool = False) -> None:
        super().__init__()
        self.words, self.fails, self.cancelled = words, fails, 0
        self.next = asyncio.Semaphore(0)

    async def generate(self, token_ids: Any, sampling: Any, order: str = "", on_tokens: Any = None) -> Generation:
        ids: list[int] = []
        try:
            for word in self.words:
                await self.next.acquire()
                ids += self.tokenizer.encode(word)
                on_tokens(self.tokenizer.encode(word))
            await self.next.acquire()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise EngineFailed("The engine cannot go on.", "resume the run")
        return Generation((*ids, STOP), (-0.5,) * (len(ids) + 1), "stop", 0)


async def streamed(engine: Held, work: Any, path: str = PATHS[0]) -> ServedEpisode:
    """Over a real socket: the work gets the lines of the stream as they come."""
    endpoint, episode = Endpoint("tiny"), episode_of(engine)
    key = endpoint.open("one", episode)
    async with serving(endpoint.app()) as url, httpx.AsyncClient(timeout=60) as http:
        body = {"messages": [user("a")], "stream": True, "max_tokens": 99}
        head = {"authorization": f"Bearer {key}"}
        engine.next.release()
        async with http.stream("POST", f"{url}/e/one{path}", json=body, headers=head) as response:
            assert response.status_code == 200
            lines = (line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: "))
            await work(lines)
    for _ in range(500):  # who hangs up is heard of a little later
        if not episode._under_way:
            break
        await asyncio.sleep(0.02)
    return episode


def test_words_come_before_the_reply_is_whole() -> None:
    async def work() -> None:
        engine, heard = Held("one", " two", " three"), []

        async def read(lines: Any) -> None:
            async for line in lines:
                if line != "[DONE]":
                    heard.append(json.loads(line)["choices"][0]["delta"].get("content"))
                engine.next.release()  # the next word is not said before this one has come

        episode = await streamed(engine, read)
        assert [text for text in heard if text] == ["one", " two", " three"] and len(episode.forest.replies) == 1

    asyncio.run(work())


@pytest.mark.parametrize("path", PATHS[:2])
def test_who_hangs_up_in_the_middle_of_a_stream_ends_the_sampling_and_is_counted(path: str) -> None:
    async def work() -> None:
        engine = Held("one", " two", " three")

        async def read(lines: Any) -> None:
            async for line in lines:
                if "one" in line:
                    return

        episode = await streamed(engine, read, path)
        assert engine.cancelled == 1 and not episode.forest.replies
        assert episode.metrics()["requests_abandoned"] == 1 and episode.failure is None

    asyncio.run(work())


@pytest.mark.parametrize("path", PATHS[:2])
def test_an_engine_that_fails_in_the_middle_of_a_stream_is_told_of(path: str) -> None:
    async def work() -> None:
        engine, heard = Held("one", fails=True), []

        async def read(lines: Any) -> None:
            async for line in lines:
                heard.append(json.loads(line))
                engine.next.release()

        episode = await streamed(engine, read, path)
        assert heard[-1]["error"]["message"] == "The engine cannot go on."
        assert isinstance(episode.failure, EngineFailed) and not episode.forest.replies

    asyncio.run(work())


def test_what_fails_before_the_first_word_has_a_status_of_its_own() -> None:
    endpoint = Endpoint("tiny")
    endpoint.open("one", episode_of(Recorded(context=60)))

    async def work() -> None:
        answer = await Client(endpoint).post({"messages": [user("word " * 50)], "stream": True})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"

    asyncio.run(work())


def test_several_replies_side_by_side_and_their_logprobs() -> None:
    endpoint, episode = Endpoint("tiny"), episode_of(Recorded())
    endpoint.open("one", episode)

    async def work() -> None:
        body = {"messages": [user("a")], "stream": True, "n": 3, "logprobs": True}
        chunks = events_of((await Client(endpoint).post(body)).text)
        for i, (_, came) in enumerate(trained_pairs(episode)):
            own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == i]
            assert "".join(c["delta"].get("content") or "" for c in own) == CHAT.decode(came[:-1])
            logprobs = [token for c in own for token in (c["logprobs"] or {"content": []})["content"]]
            assert [token["token_id"] for token in logprobs] == came and own[-1]["finish_reason"] == "stop"

    asyncio.run(work())
