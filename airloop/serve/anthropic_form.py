"""Messages as Anthropic's clients write them, in the terms of a chat completion and back."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.serve.answer import Answer, Choice
from airloop.serve.chat_form import BadRequest, ChatRequest, listed, read_request
from airloop.serve.stream import Form, event

_IGNORED = {"model", "metadata", "service_tier", "container", "betas", "context_management", "cache_control"}
_IGNORED |= {"inference_geo", "diagnostics", "speed", "user_profile_id", "workspace_id"}
_UNCHANGED = {"temperature", "top_p", "top_k", "max_tokens", "stream"}
_READ = {"system", "messages", "tools", "tool_choice", "stop_sequences", "thread"}
FINISHED = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read_messages_request(body: Any) -> ChatRequest:
    """A request of /v1/messages; BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    _refuse_thread(body.get("thread"))
    for name in body.keys() - _IGNORED - _UNCHANGED - _READ:
        if name == "thinking" and _kind(body[name]) in (None, "disabled", "adaptive"):
            continue  # the policy thinks or does not, as it has learned to
        raise BadRequest(f"{name} is not supported here.", param=name, code="unsupported_parameter")
    said = list(_messages(body.get("messages")))
    if not said:
        raise BadRequest("messages must have at least one message that says something.", param="messages")
    choice = _kind(body.get("tool_choice") or {"type": "auto"})
    chat = {
        **{name: body[name] for name in _UNCHANGED if body.get(name) is not None},
        "messages": [*_system(body.get("system")), *said],
        "tools": [_tool(tool, f"tools.{i}") for i, tool in enumerate(listed(body.get("tools"), "tools"))],
        "tool_choice": choice if choice in ("auto", "none") else "required",
    }
    if said[-1]["role"] == "assistant":
        raise BadRequest("A reply that is begun by the client cannot be had here.", param="messages")
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    return read_request(chat)


def _refuse_thread(given: Any) -> None:
    """A conversation stored by the server, of which clients send only what is new. A client that gets this error sends
    the whole conversation."""
    if given is not None:
        code = "thread_unsupported_request"
        why = "No conversation is kept here: send the whole of it."
        raise BadRequest(why, param="thread", code=code, details={"error_code": code, "unsupported": ["thread"]})


def _kind(given: Any) -> Any:
    return given.get("type") if isinstance(given, dict) else given


def _system(given: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _plain(given, "system")}] if given else []


def _plain(content: Any, at: str) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    blocks = content if isinstance(content, list) else [None]
    texts = [b.get("text") if isinstance(b, dict) and b.get("type") == "text" else None for b in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{at}: only text can be read here.", param=at)
    return "".join(texts)  # type: ignore[arg-type]


def _messages(given: Any) -> Iterator[dict[str, Any]]:
    """A message with results of tools and with text is several of a chat's."""
    for i, message in enumerate(given if isinstance(given, list) else [None]):
        at = f"messages.{i}"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise BadRequest(f"{at} must be an object whose role is user or assistant.", param=at)
        blocks = message.get("content")
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise BadRequest(f"{at}.content must be text, or a list of blocks.", param=at)
        yield from (_assistant_message(blocks, at) if message["role"] == "assistant" else _user_messages(blocks, at))


def _assistant_message(blocks: list[dict[str, Any]], at: str) -> Iterator[dict[str, Any]]:
    texts = [block for block in blocks if block.get("type") == "text"]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    others = {str(b.get("type")) for b in blocks} - {"text", "tool_use", "thinking", "redacted_thinking"}
    if others:
        raise BadRequest(f"{at}: {', '.join(sorted(others))} cannot be read here.", param=at)
    made: dict[str, Any] = {"role": "assistant", "content": _plain(texts, at)}
    if thoughts := [
        b["thinking"] for b in blocks if b.get("type") == "thinking" and isinstance(b.get("thinking"), str)
    ]:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call.get("name"), "arguments": json.dumps(call.get("input") or {})},
            }
            for call in calls
        ]
    yield made


def _user_messages(blocks: list[dict[str, Any]], at: str) -> Iterator[dict[str, Any]]:
    texts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            result = _plain(block.get("content"), f"{at}.content")
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": result}
        else:
            texts.append(block)
    if texts:
        yield {"role": "user", "content": _plain(texts, at)}


def _tool(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or given.get("type", "custom") != "custom":
        raise BadRequest(f"{at} must have a name and an input_schema.", param=at)
    function = {"name": given["name"], "parameters": given.get("input_schema") or {"type": "object"}}
    if given.get("description"):
        function["description"] = given["description"]
    return {"type": "function", "function": function}


# --- answers ---------------------------------------------------------------------------------------------------


def blocks_of(choice: Choice) -> list[dict[str, Any]]:
    message, found = choice.message, []
    if message.get("reasoning_content"):
        found.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content") or not message.get("tool_calls"):
        found.append({"type": "text", "text": message.get("content") or ""})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        called = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        found.append({**called, "input": json.loads(function["arguments"])})
    return found


class MessagesForm(Form):
    """Anthropic's messages: blocks, one after the other."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model}
        self._block = -1  # the one that is open, or was last
        self._open = ""  # its kind

    def whole(self, answer: Answer) -> dict[str, Any]:
        (choice,) = answer.choices
        usage = {"input_tokens": answer.prompt_tokens, "output_tokens": choice.tokens}
        return {**self._head, "content": blocks_of(choice), **_ending(choice), "usage": usage}

    def begin(self, prompt_tokens: int) -> Iterator[str]:
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        yield _event("message_start", message={**self._head, **nothing, "usage": usage})

    def piece(self, i: int, thought: str, content: str) -> Iterator[str]:
        self.record_sent(i, thought, content)
        if thought:
            yield from self._delta({"type": "thinking", "thinking": "", "signature": ""}, "thinking", thought)
        if content:
            yield from self._delta({"type": "text", "text": ""}, "text", content)

    def end(self, answer: Answer) -> Iterator[str]:
        (choice,) = answer.choices
        yield from self.piece(0, *self.unsent(0, choice.message))
        for block in blocks_of(choice):
            if block["type"] == "tool_use":
                yield from self._begin_block({**block, "input": {}})
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
                yield _event("content_block_delta", index=self._block, delta=delta)
            elif block["type"] == "text" and not block["text"]:
                yield from self._begin_block(block)
        yield from self._end_block()
        yield _event("message_delta", delta=_ending(choice), usage={"output_tokens": choice.tokens})
        yield _event("message_stop")

    def fail(self, error: BadRequest) -> Iterator[str]:
        yield _event("error", error={"type": "api_error", "message": str(error)})

    def _delta(self, block: Mapping[str, Any], kind: str, text: str) -> Iterator[str]:
        if self._open != block["type"]:
            yield from self._begin_block(block)
        yield _event("content_block_delta", index=self._block, delta={"type": f"{kind}_delta", kind: text})

    def _begin_block(self, block: Mapping[str, Any]) -> Iterator[str]:
        yield from self._end_block()
        self._block, self._open = self._block + 1, block["type"]
        yield _event("content_block_start", index=self._block, content_block=block)

    def _end_block(self) -> Iterator[str]:
        if self._open:
            yield _event("content_block_stop", index=self._block)
        self._open = ""


def _ending(choice: Choice) -> dict[str, Any]:
    reason = "stop_sequence" if choice.stop_text else FINISHED[choice.finish]
    return {"stop_reason": reason, "stop_sequence": choice.stop_text or None}


def _event(name: str, /, **fields: Any) -> str:
    return event({"type": name, **fields}, name)
