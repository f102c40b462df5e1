"""A model behind OpenAI's interface that is a script of an environment's own: for systems that ask models by URL."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from airloop.chat.actions import parse
from airloop.chat.native import as_text
from airloop.types import Agent, Message


class StandIn:
    """Answers one conversation after another, each by the next of the agents. `asked` keeps every request."""

    def __init__(self, agents: Sequence[Agent], tools: bool) -> None:
        self.tools = tools  # whether what looks like tool calls is one
        self.coming: Iterator[Agent] = iter(agents)
        self.agent: Agent | None = None
        self.asked: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        messages = [Message(role=m["role"], content=as_text(m)) for m in body["messages"]]
        if not any(message["role"] == "assistant" for message in messages):
            self.agent = next(self.coming)
        assert self.agent is not None
        reply = asyncio.run(self.agent.reply(messages, body.get("tools") or ()))
        return {
            "id": f"chatcmpl-{len(self.asked)}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [_choice(reply["content"], self.tools, len(self.asked))],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


def _choice(text: str, tools: bool, number: int) -> dict[str, Any]:
    """As servers with a parser for tool calls give them: apart from the text."""
    actions = [a for a in parse(text, "tools")[0] if a.kind == "tool"] if tools else []
    calls = [
        {
            "id": f"call-{number}-{place}",
            "type": "function",
            "function": {"name": action.name, "arguments": json.dumps(dict(action.arguments))},
        }
        for place, action in enumerate(actions)
    ]
    said: dict[str, Any] = {"role": "assistant", "content": text.partition("<tool_call>")[0] if calls else text}
    return {
        "index": 0,
        "message": {**said, "tool_calls": calls} if calls else said,
        "finish_reason": "tool_calls" if calls else "stop",
    }


@contextmanager
def serving(model: StandIn) -> Iterator[str]:
    """Its URL on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: Mapping[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(model.answer(dict(body))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
