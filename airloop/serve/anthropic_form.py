"""Messages as Anthropic's clients write them, in the terms of a chat completion and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.serve.chat_form import BadRequest, ChatRequest, listed, read_request
from airloop.serve.episode import Answer, Choice

_SILENT = {"model", "metadata", "service_tier", "container", "betas", "context_management", "cache_control"}
_SILENT |= {"inference_geo", "diagnostics", "speed", "user_profile_id", "workspace_id"}
_SAME = {"temperature", "top_p", "top_k", "max_tokens", "stream"}
_READ = {"system", "messages", "tools", "tool_choice", "stop_sequences", "thread"}
FINISHED = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read_messages_request(body: Any) -> ChatRequest:
    """A request of /v1/messages; BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    _refuse_thread(body.get("thread"))
    for name in body.keys() - _SILENT - _SAME - _READ:
        if name == "thinking" and _kind(body[name]) in (None, "disabled", "adaptive"):
            continue  # the policy thinks or does not, as it has learned to
        raise BadRequest(f"{name} is not supported here.", param=name, code="unsupported_parameter")
    choice = _kind(body.get("tool_choice") or {"type": "auto"})
    chat = {
        **{name: body[name] for name in _SAME if body.get(name) is not None},
        "messages": [*_system(body.get("system")), *_messages(body.get("messages"))],
        "tools": [_tool(tool, f"tools.{i}") for i, tool in enumerate(listed(body.get("tools"), "tools"))],
        "tool_choice": choice if choice in ("auto", "none") else "required",
    }
    if chat["messages"][-1]["role"] == "assistant":
        raise BadRequest("A reply that is begun by the client cannot be had here.", param="messages")
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    return read_request(chat)


def _refuse_thread(given: Any) -> None:
    """A conversation that the server keeps, of which clients send only what is new. Told so in these words, a client
    that would like one sends the whole."""
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
        yield from (_said(blocks, at) if message["role"] == "assistant" else _asked(blocks, at))


def _said(blocks: list[dict[str, Any]], at: str) -> Iterator[dict[str, Any]]:
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


def _asked(blocks: list[dict[str, Any]], at: str) -> Iterator[dict[str, Any]]:
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


def messages_answer(id: str, model: str, answer: Answer) -> dict[str, Any]:
    (choice,) = answer.choices
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks_of(choice),
        "stop_reason": "stop_sequence" if choice.halted else FINISHED[choice.finish],
        "stop_sequence": choice.halted or None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": choice.tokens},
    }


def messages_events(id: str, model: str, answer: Answer) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The same as a stream: names of events, and what each says."""
    whole = messages_answer(id, model, answer)
    opening = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
    yield "message_start", {"message": opening}
    for index, block in enumerate(whole["content"]):
        empty, delta = _delta(block)
        yield "content_block_start", {"index": index, "content_block": empty}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield "message_delta", {"delta": ending, "usage": {"output_tokens": whole["usage"]["output_tokens"]}}
    yield "message_stop", {}


def _delta(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if block["type"] == "text":
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    if block["type"] == "thinking":
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        return empty, {"type": "thinking_delta", "thinking": block["thinking"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
