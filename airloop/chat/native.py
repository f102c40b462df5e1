"""Replies as messages with tool calls apart from the text, which is how OpenAI's interface gives them, beside the same
replies as text, which is what episodes speak."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.chat.forest import find_replies
from airloop.chat.tool_calls import JSON
from airloop.types import Message


class NativeReplies:
    """The replies given in one conversation, each as it came and as the text that episodes know.

    text = replies.hear(message)
    replies.conversation(messages)  # with the replies as they came in place of their texts
    """

    def __init__(self) -> None:
        self._heard: list[tuple[str, Any, list[str]]] = []

    def __len__(self) -> int:
        return len(self._heard)

    def hear(self, native: Mapping[str, Any], kept: Any = None) -> str:
        """A reply's text. `kept`: what stands for it when the conversation goes back; the message, unless given."""
        text = as_text(native)
        calls = [str(call.get("id", "")) for call in native.get("tool_calls") or []]
        self._heard.append((text, native if kept is None else kept, calls))
        return text

    def conversation(self, messages: Sequence[Message]) -> list[Any]:
        """Tool results answer calls by the ids that these came with; without such calls they are user messages."""
        out: list[Any] = []
        open_calls: list[str] = []
        own = find_replies(messages, [text for text, _, _ in self._heard])
        for place, message in enumerate(messages):
            if place in own:
                _, kept, calls = self._heard[own[place]]
                open_calls = list(calls)
                out.append(kept)
            elif message["role"] != "tool":
                out.append(dict(message))
            elif open_calls:
                out.append({"role": "tool", "tool_call_id": open_calls.pop(0), "content": message["content"]})
            else:
                out.append({"role": "user", "content": message["content"]})
        return out


def as_text(native: Mapping[str, Any]) -> str:
    """Calls in Hermes' form, after what was said."""
    parts = [native["content"]] if native.get("content") else []
    for call in native.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        with contextlib.suppress(TypeError, ValueError):  # broken JSON stays a string, and parse() says so
            arguments = JSON.decode(arguments)
        call_text = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{call_text}\n</tool_call>")
    return "\n".join(parts)
