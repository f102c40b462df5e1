"""Anthropic's messages and OpenAI's responses: the same conversations, in other words."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import ANY

import pytest
from support.endpoint_world import CALL, Client, Recorded, episode_of, play, trained_pairs, user
from support.rollout_world import ScriptedEngine, chat_tokenizer

from airloop.serve.app import Endpoint
from airloop.serve.responses_form import read_responses_request

TEXT = {"type": "text", "text": "Where is it?"}
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def looks(prompt: str, seed: int) -> str:
    return f"I look.\n{CALL}\n{CALL}" if "tool_response" not in prompt else "<think>\nhm\n</think>\n\nIt is there."


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(said["type"] == name for name, said in found)
    return found


def test_anthropics_messages_with_tools() -> None:
    engine = Recorded(looks)
    tools = [{"name": "look", "description": "looks", "input_schema": SCHEMA}]

    async def work(client: Client) -> None:
        head = {"model": "m", "max_tokens": 150, "system": [{"type": "text", "text": "Be good."}], "tools": tools}
        first = (await client.post({**head, "messages": [{"role": "user", "content": [TEXT]}]}, MESSAGES)).json()
        assert first["stop_reason"] == "tool_use" and [b["type"] for b in first["content"]] == [
            "text",
            "tool_use",
            "tool_use",
        ]
        assert first["content"][1]["input"] == {"at": "é"} and first["usage"]["output_tokens"] == len(
            engine.pairs[0][1]
        )
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "here"}]}
            for block in first["content"][1:]
        ]
        history = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": first["content"]}]
        body = {**head, "messages": [*history, {"role": "user", "content": [*results, TEXT]}]}
        second = (await client.post(body, MESSAGES)).json()
        assert [b["type"] for b in second["content"]] == ["thinking", "text"] and second["stop_reason"] == "end_turn"
        said = events((await client.post({**body, "stream": True}, MESSAGES)).text)
        names = [name for name, _ in said]
        assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
        texts = [d["delta"]["text"] for n, d in said if n == "content_block_delta" and "text" in d["delta"]]
        assert "".join(texts) == "It is there." and len(texts) > 1

    episode = play(work, engine)
    assert trained_pairs(episode) == engine.pairs and len(engine.pairs) == 3
    assert "Be good." in chat_tokenizer("chatml").decode(engine.pairs[0][0])


def test_openais_responses_with_tools() -> None:
    engine = Recorded(looks)
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}]

    async def work(client: Client) -> None:
        head = {"model": "m", "instructions": "Be good.", "tools": tools, "store": False, "max_output_tokens": 150}
        first = (await client.post({**head, "input": "Where is it?"}, RESPONSES)).json()
        assert first["status"] == "completed"
        assert [item["type"] for item in first["output"]] == ["message", "function_call", "function_call"]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "here"}
            for item in first["output"][1:]
        ]
        begun = {"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]}
        body = {**head, "input": [begun, *first["output"], *results]}
        second = (await client.post(body, RESPONSES)).json()
        assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
        assert second["output"][1]["content"][0]["text"] == "It is there."
        said = events((await client.post({**body, "stream": True}, RESPONSES)).text)
        assert [d["sequence_number"] for _, d in said] == list(range(len(said)))
        assert said[0][0] == "response.created" and said[-1][0] == "response.completed"
        assert said[-1][1]["response"]["output"][-1]["content"][0]["text"] == "It is there."

    episode = play(work, engine)
    assert trained_pairs(episode) == engine.pairs
    one, two = engine.pairs[0], engine.pairs[1]
    assert two[0][: len(one[0]) + len(one[1])] == one[0] + one[1]  # the calls came back as they were sampled


def test_a_thought_is_of_the_reply_that_it_stands_before() -> None:
    def thought(*texts: str, **more: Any) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in texts], **more}

    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    said = {"role": "assistant", "content": "four"}
    own = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    for items, wanted in (
        ([thought("h", "m"), said], [{**own, "content": "four"}]),
        ([said, thought("hm"), call], [said, {**own, "tool_calls": ANY}]),
        ([thought("hm"), said, call], [{**own, "content": "four", "tool_calls": ANY}]),
        ([thought("hm"), user("a"), said], [own, user("a"), said]),
        ([thought(content=[{"type": "reasoning_text", "text": "hm"}]), said], [{**own, "content": "four"}]),
        ([said, thought(encrypted_content="x"), call], [{**said, "tool_calls": ANY}]),
    ):
        assert list(read_responses_request({"input": items}).messages) == wanted


def test_a_reply_that_is_cut_says_so_in_every_form() -> None:
    async def work(client: Client) -> None:
        long = {"role": "user", "content": "a"}
        anthropic = (await client.post({"max_tokens": 5, "messages": [long]}, MESSAGES)).json()
        response = (await client.post({"max_output_tokens": 5, "input": [long]}, RESPONSES)).json()
        assert anthropic["stop_reason"] == "max_tokens" and response["status"] == "incomplete"

    play(work, Recorded(lambda prompt, seed: "x" * 50))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "messages.0"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0"),
        (MESSAGES, {"messages": [user("a")], "thinking": {"type": "enabled", "budget_tokens": 99}}, "thinking"),
        (MESSAGES, {"messages": [user("a")], "tools": [{"type": "web_search", "name": "s"}]}, "tools.0"),
        (MESSAGES, {"messages": [user("a")], "mcp_servers": []}, "mcp_servers"),
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"input": [{"type": "image_generation_call"}]}, "input.0"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text"),
        (RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}, "tools.0"),
        (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}, "messages.0"),
        (MESSAGES, {"messages": []}, "messages"),
        (MESSAGES, {"messages": [], "system": "x"}, "messages"),
        (MESSAGES, {"messages": [{"role": "user", "content": []}]}, "messages"),
        (RESPONSES, {"input": []}, "messages"),
        (MESSAGES, {"messages": [user("a")], "tools": 5}, "tools"),
        (MESSAGES, {"messages": [user("a")], "thinking": "x"}, "thinking"),
        (MESSAGES, {"messages": [user("a"), {"role": "assistant", "content": "I"}]}, "messages"),
        (RESPONSES, {"input": "a", "tools": 5}, "tools"),
        (RESPONSES, {"input": "a", "reasoning": {"effort": "high"}}, "reasoning"),
        (RESPONSES, {"input": "a", "top_logprobs": 3}, "top_logprobs"),
        (RESPONSES, {"input": "a", "include": ["message.output_text.logprobs"]}, "include"),
        (RESPONSES, {"input": "a", "include": 5}, "include"),
        (RESPONSES, [], ""),
        (MESSAGES, "x", ""),
    ],
)
def test_what_cannot_be_had_is_refused_in_every_form(path: str, body: Any, param: str) -> None:
    async def work(client: Client) -> None:
        answer = await client.post(body, path)
        assert answer.status_code == 400 and (answer.json()["error"]["param"] or "") == param, answer.text

    assert not play(work).forest.replies


def test_anthropics_clients_send_the_key_in_a_head_of_their_own() -> None:
    endpoint = Endpoint("tiny")
    endpoint.open("one", episode_of(ScriptedEngine(chat_tokenizer("chatml"))))

    async def work() -> None:
        body = {"max_tokens": 9, "messages": [user("a")]}
        client = Client(endpoint, "one", "")
        assert (await client.post(body, MESSAGES)).status_code == 401
        assert (await client.post(body, MESSAGES, **{"x-api-key": endpoint.key("one")})).status_code == 200

    asyncio.run(work())


def test_who_would_have_its_conversation_kept_is_told_to_send_the_whole() -> None:
    """By the error's details: Anthropic's runner of tools asks for it by itself, and goes on without when told so."""

    async def work(client: Client) -> None:
        body = {"max_tokens": 9, "messages": [user("a")], "thread": {"type": "create"}}
        refused = await client.post(body, MESSAGES)
        details = refused.json()["error"]["details"]
        assert refused.status_code == 400 and details["error_code"] == "thread_unsupported_request"
        assert (await client.post({**body, "thread": None}, MESSAGES)).status_code == 200

    assert len(play(work).forest.replies) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none", "verbosity": "low", "prompt_cache_options": {}}),
        (RESPONSES, {"reasoning": {"effort": "none"}, "text": {"verbosity": "low"}, "prompt_cache_options": {}}),
        (RESPONSES, {"include": ["reasoning.encrypted_content"], "top_logprobs": 0}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 0, "parallel_tool_calls": False}),
        (MESSAGES, {"diagnostics": {}, "speed": "standard", "user_profile_id": "x", "workspace_id": "y"}),
    ],
)
def test_what_says_nothing_of_the_sampling_is_let_by(path: str, body: dict[str, Any]) -> None:
    """What libraries send by themselves: OpenAI's Agents SDK asks its default model not to think."""

    async def work(client: Client) -> None:
        asked = {"input": "a"} if path == RESPONSES else {"max_tokens": 9, "messages": [user("a")]}
        answer = await client.post({**asked, **body}, path)
        assert answer.status_code == 200, answer.text

    assert len(play(work).forest.replies) == 1
