"""Failures D11 to D13: tasks about web pages that gave themselves away, showed the old page, or were graded wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airloop.rollout.episode import run_episode
from airloop.rollout.url_agent import UrlAgent
from airloop.types import Action, Agent, Message, Task, Trajectory
from airloop_envs.soup.agents import call, say
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.env import SoupEnv
from airloop_envs.soup.generate import KINDS, generate
from airloop_envs.soup.grading import REASONS, Answer, Attempt, judge
from airloop_envs.soup.session import SoupSession
from airloop_envs.soup.spec import SoupTask
from airloop_envs.soup.tools import opening_texts, tool_schemas

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
LIMITS = sorted(name for name in KINDS if generate(name, 0).limit is not None)
SOUP = ("print(make_soup().title)", False)


def as_task(kind: str, seed: int) -> Task:
    return Task("soup", f"{kind}-{seed}", "test", {"kind": kind, "seed": seed}, KINDS[kind].level)


def played(task: Task, agent: Agent, **args: Any) -> Trajectory:
    async def once() -> Trajectory:
        env = SoupEnv(SoupArgs(**args))
        try:
            return await run_episode(env, task, agent, id="x", seed=0)
        finally:
            await env.close()

    return asyncio.run(once())


# --- D11 ------------------------------------------------------------------------------------------------------


def blind(task: SoupTask) -> Iterator[Answer]:
    """Evidence that needs no look at the page, with every reason."""
    guesses = ["<", "<script", "<script>", "</script>", "<canvas", "<canvas>", "<img", "<object", "application/pdf", ""]
    guesses += [".png", "fetch(", "<!doctype html>", "<html", task.query, " " * 20, "<" * 20]
    for evidence in guesses:
        for reason in (*REASONS, " ".join(REASONS)):
            yield Answer("limit", None, reason, evidence)


@pytest.mark.parametrize("kind", LIMITS)
def test_D11_blind_evidence_earns_nothing_and_real_evidence_does(kind: str) -> None:
    for seed in range(5):
        task = generate(kind, seed)
        assert task.limit is not None
        for answer in blind(task):
            assert judge(task, Attempt([SOUP], 0, ["/"], answer)).worth == 0, answer
        real = Answer("limit", None, task.limit.reason, task.limit.evidence[0])
        assert judge(task, Attempt([SOUP], 0, ["/"], real)).worth == 0.5


@pytest.mark.parametrize("kind", LIMITS)
def test_D11_a_limit_and_its_twin_open_with_the_same_words_and_tools(kind: str) -> None:
    for seed in range(10):
        task, twin = generate(kind, seed), generate(KINDS[kind].twin, seed)
        assert opening_texts(task, False) == opening_texts(twin, False)
        assert tool_schemas(task, False) == tool_schemas(twin, False)
        assert twin.limit is None


def test_D11_no_opening_names_its_kind_or_the_answer() -> None:
    for kind in KINDS:
        for seed in range(3):
            task = generate(kind, seed)
            words = "\n".join(opening_texts(task, True))
            assert "_" not in kind or kind not in words
            if isinstance(task.answer, str) and len(task.answer) > 3:
                assert task.answer not in words, (kind, seed)


# --- D12 ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("together", [True, False], ids=["in one reply", "in two replies"])
def test_D12_the_first_call_after_a_page_change_sees_the_new_page(together: bool) -> None:
    kind = next(name for name in KINDS if generate(name, 0).multi_page)
    task = generate(kind, 0)
    other = next(href for href in task.pages if href != "/")
    look = "import hashlib; print(hashlib.sha256(HTML.encode()).hexdigest())"

    class Visitor:
        """There and back, looking after every step."""

        def __init__(self) -> None:
            walk = [[call("run_python", code=look)]]
            for href in (other, "/", other):
                steps = [call("navigate", href=href), call("run_python", code=look)]
                walk += [steps] if together else [[step] for step in steps]
            self.replies = iter(walk)

        async def reply(self, messages: Sequence[Message], tools: Sequence[Any]) -> Message:
            return say(*next(self.replies, [call("answer", status="ok", answer=None)]))

    trajectory = played(as_task(kind, 0), Visitor())
    seen = [
        observation.text
        for turn in trajectory.turns
        for action, observation in zip(turn.actions, turn.observations, strict=True)
        if action.name == "run_python"
    ]
    expected = [hashlib.sha256(task.pages[href].encode()).hexdigest() for href in ("/", other, "/", other)]
    assert seen == expected


# --- D13 ------------------------------------------------------------------------------------------------------

LOOKS_LIKE_JSON = ("4.8", "007", "true", "null", '"quoted"', '{"a": 1}', "[1]", "1e3", "\\u0041", "a\\nb", "-0")


def stringly(value: str) -> SoupTask:
    base = generate("text_by_id", 0)
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return SoupTask(**{**fields, "answer": value, "schema": {"type": "string"}})


@pytest.mark.parametrize("value", LOOKS_LIKE_JSON)
def test_D13_a_string_that_looks_like_json_is_that_string_and_nothing_else(value: str) -> None:
    task = stringly(value)
    given = json.dumps({"status": "ok", "answer": value})  # as a reply writes it: encoded once
    session = SoupSession(task, SoupArgs(), sandbox_pool=None)  # type: ignore[arg-type]
    session.attempt.codes.append(SOUP)
    asyncio.run(session.act(Action("tool", name="answer", arguments=json.loads(given))))
    assert judge(task, session.attempt).outcome == "correct"
    for decoded in ("4.80", value + " x"):
        assert judge(task, Attempt([SOUP], 0, ["/"], Answer("ok", decoded))).outcome == "wrong"
    for other in (4.8, 7, True, None, {"a": 1}, [1]):
        assert judge(task, Attempt([SOUP], 0, ["/"], Answer("ok", other))).outcome == "schema_error"


@contextmanager
def server(replies: list[dict[str, Any]]) -> Iterator[str]:
    """An OpenAI-compatible server that gives these messages in order."""
    left = iter(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = {"choices": [{"message": next(left), "finish_reason": "tool_calls"}], "usage": {}}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
        http.server_close()


def native(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}  # servers give arguments as a string
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@pytest.mark.slow
@needs_sandbox
def test_D13_a_servers_arguments_are_decoded_once() -> None:
    task = generate("text_by_id", 5)
    replies = [
        native("run_python", {"code": task.recipe[0].code}),
        native("answer", {"status": "ok", "answer": task.answer}),
    ]
    with server(replies) as url:
        trajectory = played(as_task("text_by_id", 5), UrlAgent(url, "any"))
    assert trajectory.metrics["correct"] == 1.0 and trajectory.reward == 1.0
