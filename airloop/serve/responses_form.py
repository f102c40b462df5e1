"""OpenAI's responses, the part of them that keeps nothing on the server, in the terms of a chat completion and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airloop.serve.chat_form import BadRequest, ChatRequest, listed, read_request
from airloop.serve.episode import Answer, Choice

_SILENT = {"model", "store", "user", "metadata", "parallel_tool_calls", "include", "service_tier", "safety_identifier"}
_SILENT |= {"prompt_cache_key", "prompt_cache_retention", "top_logprobs", "stream_options", "prompt_cache_options"}
_SAME = {"temperature", "top_p", "stream"}
_READ = {"input", "instructions", "tools", "tool_choice", "max_output_tokens"}
# What would need a memory on the server, or change what is sampled, unless it has one of these values.
_OFF: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "prompt": (None,),
    "truncation": (None, "disabled"),
    "max_tool_calls": (None,),
}

# Tables of which only some keys change what is sampled, unless they have one of these values.
_MILD: dict[str, dict[str, tuple[Any, ...]]] = {
    "reasoning": {"effort": (None, "none")},
    "text": {"format": (None, {"type": "text"})},
}


def read_responses_request(body: Any) -> ChatRequest:
    """A request of /v1/responses; BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    for name, value in body.items():
        known = name in _SILENT | _SAME | _READ or (name in _OFF and value in _OFF[name])
        if not known and not (name in _MILD and _is_mild(name, value)):
            raise BadRequest(f"{name} is not supported here.", param=name, code="unsupported_parameter")
    choice = body.get("tool_choice")
    chat = {
        **{name: body[name] for name in _SAME if body.get(name) is not None},
        "messages": [*_instructions(body.get("instructions")), *_messages(body.get("input"))],
        "tools": [_tool(tool, f"tools.{i}") for i, tool in enumerate(listed(body.get("tools"), "tools"))],
        "tool_choice": choice if choice in (None, "auto", "none") else "required",
    }
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    return read_request(chat)


def _is_mild(name: str, value: Any) -> bool:
    """Whether it says nothing of what is sampled."""
    options = value or {}
    return isinstance(options, dict) and all(options.get(key) in allowed for key, allowed in _MILD[name].items())


def _instructions(given: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _plain(given, "instructions")}] if given else []


def _plain(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{at}: only text can be read here.", param=at)
    return "".join(texts)  # type: ignore[arg-type]


def _messages(given: Any) -> list[dict[str, Any]]:
    """What a reply consists of here, a message and calls one after the other, is one message of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    made: list[dict[str, Any]] = []
    for i, item in enumerate(given if isinstance(given, list) else [None]):
        at = f"input.{i}"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            made.append({"role": item.get("role"), "content": _plain(item.get("content"), at)})
        elif kind == "function_call":
            if not made or made[-1]["role"] != "assistant":
                made.append({"role": "assistant", "content": ""})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            made[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = _plain(item.get("output"), at)
            made.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": result})
        elif kind != "reasoning":  # a thought that comes back is known by the reply that it belongs to
            raise BadRequest(f"{at}: {kind or 'what is no object'} cannot be read here.", param=at)
    return made


def _tool(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("type") != "function" or not isinstance(given.get("name"), str):
        raise BadRequest(f"{at} must be a function with a name.", param=at)
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: given[name] for name in names if given.get(name) is not None}}


# An item before anything of it was said.
_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}

# --- answers ---------------------------------------------------------------------------------------------------


def items_of(choice: Choice, id: str) -> list[dict[str, Any]]:
    message, found = choice.message, list[dict[str, Any]]()
    if message.get("reasoning_content"):
        thought = {"type": "summary_text", "text": message["reasoning_content"]}
        found.append({"type": "reasoning", "id": f"rs_{id}", "summary": [thought]})
    if message.get("content") or not message.get("tool_calls"):
        text: dict[str, Any] = {
            "type": "output_text",
            "text": message.get("content") or "",
            "annotations": [],
            "logprobs": [],
        }
        made = {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": "completed"}
        found.append({**made, "content": [text]})
    for i, call in enumerate(message.get("tool_calls") or []):
        made = {"type": "function_call", "id": f"fc_{id}_{i}", "call_id": call["id"], "status": "completed"}
        found.append({**made, **call["function"]})
    return found


def response_answer(id: str, created: int, model: str, answer: Answer) -> dict[str, Any]:
    (choice,) = answer.choices
    cut = choice.finish == "length"
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": items_of(choice, id),
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": choice.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + choice.tokens,
        },
    }


def response_events(id: str, created: int, model: str, answer: Answer) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The same as a stream: names of events, and what each says."""
    whole = response_answer(id, created, model, answer)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    for number, (name, said) in enumerate(_events(whole, begun)):
        yield name, {**said, "sequence_number": number}


def _events(whole: dict[str, Any], begun: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(whole["output"]):
        here = {"output_index": index, "item_id": item["id"]}
        added = {**item, **_EMPTY[item["type"]], **({"status": "in_progress"} if "status" in item else {})}
        yield "response.output_item.added", {"output_index": index, "item": added}
        if item["type"] == "message":
            (part,) = item["content"]
            place = {**here, "content_index": 0}
            yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**place, "delta": part["text"], "logprobs": []}
            yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        elif item["type"] == "function_call":
            yield "response.function_call_arguments.delta", {**here, "delta": item["arguments"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", {**here, **done}
        yield "response.output_item.done", {"output_index": index, "item": item}
    ended = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
    yield ended, {"response": whole}
