"""UrlAgent against a real server on this machine; PolicyAgent's contract with its conversation."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.rollout_world import ScriptedEngine, ToolEnv, chat_tokenizer

from airloop.chat.session import ChatSession
from airloop.engine.base import ContextFull, Sampling
from airloop.errors import AirError, InfraError
from airloop.rollout.agents import PolicyAgent
from airloop.rollout.episode import run_episode
from airloop.rollout.url_agent import Dialect, UrlAgent
from airloop.types import Message

HELLO = [Message(role="user", content="hello")]


def completion(content: str | None, finish: str = "stop", **message: Any) -> tuple[int, Any]:
    answer = {
        "choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    }
    return 200, answer


@contextmanager
def server(*answers: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Gives the answers in turn, the last one for ever. An answer is (status, body[, headers]) or a delay."""
    left, requests = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append({"path": self.path, "key": self.headers.get("authorization"), **body})
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, float):
                time.sleep(answer)
                return
            status, payload, *headers = answer
            data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
            self.send_response(status)
            for name, value in dict(*headers).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", requests
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def ask(agent: UrlAgent, messages: list[Message] = HELLO, tools: Any = ()) -> Message:
    return asyncio.run(agent.reply(messages, tools))


def test_reply_with_tokens_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "k")
    with server(completion("hi", finish="length")) as (url, requests):
        agent = UrlAgent(url, "m", "TEST_KEY", price_in=2.0, price_out=10.0, temperature=0.5, max_tokens=7, seed=3)
        assert ask(agent) == {"role": "assistant", "content": "hi"}
        ask(agent)
    assert agent.cut and agent.times.model > 0
    assert agent.metrics()["cost"] == pytest.approx((200 * 2 + 20 * 10) / 1e6)
    assert requests[0] == {
        "path": "/v1/chat/completions", "key": "Bearer k", "model": "m", "temperature": 0.5, "max_tokens": 7,
        "seed": 3, "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip


def test_it_tries_again_after_429_5xx_timeouts_and_nonsense() -> None:
    answers = [(429, "", {"retry-after": "0"}), (503, "busy"), 1.3, (200, "not json"), (200, {"choices": []})]
    with server(*answers, completion("hi")) as (url, requests):
        agent = UrlAgent(url, "m", timeout_s=1.0, attempts=6, backoff_s=0.001)
        assert ask(agent)["content"] == "hi"
    assert len(requests) == 6 and agent.metrics()["request_retries"] == 5


def test_it_gives_up_after_bounded_attempts() -> None:
    with server((500, "broken")) as (url, requests):
        with pytest.raises(InfraError, match="did not answer in 3 attempts; the last: status 500"):
            ask(UrlAgent(url, "m", attempts=3, backoff_s=0.001))
        assert len(requests) == 3
    with pytest.raises(InfraError, match="ConnectError"):  # nobody listens there any more
        ask(UrlAgent(url, "m", attempts=2, backoff_s=0.001))


def test_refusals_are_not_repeated() -> None:
    with server((401, "bad key"), (400, {"error": {"code": "context_length_exceeded"}})) as (url, requests):
        agent = UrlAgent(url, "m", backoff_s=0.001)
        with pytest.raises(AirError, match="status 401: bad key"):
            ask(agent)
        with pytest.raises(ContextFull):
            ask(agent)
    assert len(requests) == 2


def test_a_missing_key_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(AirError, match="export NO_KEY"):
        UrlAgent("http://x", "m", "NO_KEY")


def test_an_episode_with_the_servers_own_tool_calls() -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
    last = completion('<tool_call>{"name": "submit", "arguments": {}}</tool_call>')
    with server(completion(None, tool_calls=[call]), completion("hm"), last) as (url, requests):
        env = ToolEnv()
        agent = UrlAgent(url, "m", price_in=1.0)
        t = asyncio.run(run_episode(env, env.tasks("train")[0], agent, id="x", seed=1))
    assert t.ending == "done" and len(t.turns) == 3
    assert env.sessions[0].acted[0].arguments == {"at": "é"}
    assert t.metrics["tokens_in"] == 300 and t.metrics["cost"] == pytest.approx(3e-4)
    assert requests[1]["messages"][2:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "you did: look"},
    ]
    assert requests[2]["messages"][-1]["role"] == "user"  # it made no call, so there is none to answer
    assert "tools" not in requests[0]


def test_the_policy_sees_a_changed_conversation_as_it_is_now() -> None:
    prompts: list[str] = []

    def speak(prompt: str, seed: int) -> str:
        prompts.append(prompt)
        return "hi"

    engine = ScriptedEngine(chat_tokenizer(), speak)
    agent = PolicyAgent(ChatSession(engine, engine.tokenizer, Sampling(50), seed=1))

    async def main() -> None:
        reply = await agent.reply(HELLO, ())
        await agent.reply([*HELLO, {**reply, "content": "other"}, *HELLO], ())

    asyncio.run(main())
    assert agent.sampled is not None and agent.sampled.stop == "stop"
    assert "assistant\nother<|im_end|>" in prompts[1] and "hi" not in prompts[1]
    assert len(agent.branches()) == 2


def test_a_server_gets_its_own_calls_back_wherever_the_view_puts_them() -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with server(completion("one"), completion(None, tool_calls=[call]), completion("end")) as (url, requests):
        agent = UrlAgent(url, "m")
        first = ask(agent)
        second = ask(agent, [*HELLO, first, *HELLO])
        ask(agent, [Message(role="user", content="(left out)"), second, Message(role="tool", content="seen")])
    assert requests[2]["messages"] == [
        {"role": "user", "content": "(left out)"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "seen"},
    ]


LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "refusal",
    [
        (404, {"error": {"message": "No endpoints found that support tool use. Try disabling the tool", "code": 404}}),
        (400, {"error": "registry/model:latest does not support tools"}),
        (400, {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'}),
        (400, {"error": {"message": "Unrecognized request argument supplied: tools"}}),
    ],
)
def test_a_server_without_tools_is_told_of_them_in_the_system_message(refusal: tuple[int, Any]) -> None:
    dialect = Dialect()
    spoken = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    with server(refusal, completion(spoken), completion("done")) as (url, requests):
        agent = UrlAgent(url, "m", dialect=dialect)
        first = ask(agent, tools=[LOOK])
        ask(agent, [*HELLO, first, Message(role="tool", content="a shelf")], [LOOK])
        ask(UrlAgent(url, "m", dialect=dialect), tools=[LOOK])
    assert ["tools" in request for request in requests] == [True, False, False, False], "refused once, then known"
    system, user = requests[1]["messages"]
    assert system["role"] == "system" and '"name": "look"' in system["content"] and user == HELLO[0]
    assert requests[2]["messages"][1:] == [
        HELLO[0],
        {"role": "assistant", "content": spoken},
        {"role": "user", "content": "<tool_response>\na shelf\n</tool_response>"},
    ]
    assert len(dialect.notes) == 1 and "has no tools" in dialect.notes[0]


def test_a_server_that_wants_another_name_for_the_length_gets_it() -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with server((400, {"error": {"message": said}}), completion("hi")) as (url, requests):
        agent = UrlAgent(url, "m", max_tokens=7)
        assert ask(agent)["content"] == ask(agent)["content"] == "hi"
    assert [(r.get("max_tokens"), r.get("max_completion_tokens")) for r in requests] == [
        (7, None),
        (None, 7),
        (None, 7),
    ]


def test_any_other_refusal_is_told_as_it_is_and_asked_once() -> None:
    refusal = (400, {"error": "tools.0.function: name is too long"})
    with server(refusal) as (url, requests), pytest.raises(AirError, match="name is too long"):
        ask(UrlAgent(url, "m"), tools=[LOOK])
    assert len(requests) == 1
