"""OpenAI's responses, the part of them that keeps nothing on the server, in the terms of a chat completion and back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.serve.answer import Answer, Choice
from airloop.serve.chat_form import BadRequest, ChatRequest, listed, read_request
from airloop.serve.stream import Form, event

_IGNORED = {"model", "store", "user", "metadata", "parallel_tool_calls", "include", "service_tier", "safety_identifier"}
_IGNORED |= {"prompt_cache_key", "prompt_cache_retention", "stream_options", "prompt_cache_options"}
LOGPROBS = "message.output_text.logprobs"  # of what may be included
_UNCHANGED = {"temperature", "top_p", "stream"}
_READ = {"input", "instructions", "tools", "tool_choice", "max_output_tokens"}
# What would need a memory on the server, or change what is sampled, unless it has one of these values.
_MUST_BE_OFF: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "prompt": (None,),
    "truncation": (None, "disabled"),
    "max_tool_calls": (None,),
    "top_logprobs": (None, 0),
}

# Tables of which only some keys change what is sampled, unless they have one of these values.
_PARTLY_ALLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "reasoning": {"effort": (None, "none")},
    "text": {"format": (None, {"type": "text"})},
}


def read_responses_request(body: Any) -> ChatRequest:
    """A request of /v1/responses; BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    for name, value in body.items():
        known = name in _IGNORED | _UNCHANGED | _READ or (name in _MUST_BE_OFF and value in _MUST_BE_OFF[name])
        if not known and not (name in _PARTLY_ALLOWED and _changes_nothing(name, value)):
            raise BadRequest(f"{name} is not supported here.", param=name, code="unsupported_parameter")
    if LOGPROBS in listed(body.get("include"), "include"):
        problem = f"{LOGPROBS} cannot be included here: /v1/chat/completions has log-probs."
        raise BadRequest(problem, param="include", code="unsupported_parameter")
    choice = body.get("tool_choice")
    chat = {
        **{name: body[name] for name in _UNCHANGED if body.get(name) is not None},
        "messages": [*_instructions(body.get("instructions")), *_messages(body.get("input"))],
        "tools": [_tool(tool, f"tools.{i}") for i, tool in enumerate(listed(body.get("tools"), "tools"))],
        "tool_choice": choice if choice in (None, "auto", "none") else "required",
    }
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    return read_request(chat)


def _changes_nothing(name: str, value: Any) -> bool:
    """Whether it does not change what is sampled."""
    options = value or {}
    return isinstance(options, dict) and all(
        options.get(key) in allowed for key, allowed in _PARTLY_ALLOWED[name].items()
    )


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
    """The items of a reply, its thought, a message and calls one after the other, become one message of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    made: list[dict[str, Any]] = []
    thought = ""  # of the item before
    for i, item in enumerate(given if isinstance(given, list) else [None]):
        at = f"input.{i}"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        begun, thought = thought, _thought_of(item, at) if kind == "reasoning" else ""
        if thought:
            made.append({"role": "assistant", "content": "", "reasoning_content": thought})
        elif kind == "message" and begun and item.get("role") == "assistant":
            made[-1]["content"] = _plain(item.get("content"), at)
        elif kind == "message":
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
        elif kind != "reasoning":
            raise BadRequest(f"{at}: {kind or 'what is no object'} cannot be read here.", param=at)
    return made


def _thought_of(item: Mapping[str, Any], at: str) -> str:
    """What can be read of it: of an encrypted one, nothing."""
    return _plain(item.get("summary") or item.get("content") or "", at)


def _tool(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("type") != "function" or not isinstance(given.get("name"), str):
        raise BadRequest(f"{at} must be a function with a name.", param=at)
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: given[name] for name in names if given.get(name) is not None}}


# --- answers ---------------------------------------------------------------------------------------------------

# An item before any of it was sent.
_EMPTY: dict[str, dict[str, Any]] = {"function_call": {"arguments": ""}, "reasoning": {"summary": []}}


def items_of(choice: Choice, id: str) -> list[dict[str, Any]]:
    message, found = choice.message, list[dict[str, Any]]()
    if message.get("reasoning_content"):
        found.append(_thought(message["reasoning_content"], id))
    if message.get("content") or not message.get("tool_calls"):
        found.append(_message(message.get("content") or "", id))
    for i, call in enumerate(message.get("tool_calls") or []):
        made = {"type": "function_call", "id": f"fc_{id}_{i}", "call_id": call["id"], "status": "completed"}
        found.append({**made, **call["function"]})
    return found


def _thought(text: str, id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{id}", "summary": [{"type": "summary_text", "text": text}]}


def _message(text: str, id: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": "completed", "content": [part]}


class ResponsesForm(Form):
    """OpenAI's responses: items, one after the other."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._id = secrets.token_hex(12)
        self._number = self._item = 0  # of the next event; of the item that is open, or comes next
        self._head = {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": model,
            "parallel_tool_calls": True,
            "temperature": None,
            "top_p": None,
            "tool_choice": "auto",
            "tools": [],
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        (choice,) = answer.choices
        cut = choice.finish == "length"
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items_of(choice, self._id),
            "usage": _usage(answer, choice),
        }

    def begin(self, prompt_tokens: int) -> Iterator[str]:
        begun: dict[str, Any] = {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response={**self._head, **begun})

    def piece(self, i: int, thought: str, content: str) -> Iterator[str]:
        """A thought comes as a whole."""
        if thought:
            yield from self._whole_item(_thought(thought, self._id))
        if content:
            yield from self._more_text(content, begins=not self._sent.get(i, ("", ""))[1])
        self.record_sent(i, thought, content)

    def end(self, answer: Answer) -> Iterator[str]:
        (choice,) = answer.choices
        whole = self.whole(answer)
        thought, content = self.unsent(0, choice.message)
        yield from self.piece(0, thought, content)
        for item in whole["output"]:
            if item["type"] == "message":
                if not choice.message["content"]:
                    yield from self._more_text("", begins=True)
                yield from self._end_text(item)
            elif item["type"] == "function_call":
                yield from self._whole_item(item)
        yield self._event("response.incomplete" if choice.finish == "length" else "response.completed", response=whole)

    def fail(self, error: BadRequest) -> Iterator[str]:
        yield self._event("error", code=error.code, message=str(error), param=error.param or None)

    def _more_text(self, text: str, *, begins: bool) -> Iterator[str]:
        item = _message("", self._id)
        place = {"output_index": self._item, "item_id": item["id"], "content_index": 0}
        if begins:
            added = {**item, "content": [], "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=self._item, item=added)
            yield self._event("response.content_part.added", **place, part=item["content"][0])
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _end_text(self, item: Mapping[str, Any]) -> Iterator[str]:
        (part,) = item["content"]
        place = {"output_index": self._item, "item_id": item["id"], "content_index": 0}
        yield self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        yield from self._end_item(item)

    def _whole_item(self, item: Mapping[str, Any]) -> Iterator[str]:
        added = {**item, **_EMPTY[item["type"]], **({"status": "in_progress"} if "status" in item else {})}
        yield self._event("response.output_item.added", output_index=self._item, item=added)
        if item["type"] == "function_call":
            place = {"output_index": self._item, "item_id": item["id"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield self._event("response.function_call_arguments.done", **place, **done)
        yield from self._end_item(item)

    def _end_item(self, item: Mapping[str, Any]) -> Iterator[str]:
        yield self._event("response.output_item.done", output_index=self._item, item=item)
        self._item += 1

    def _event(self, name: str, /, **fields: Any) -> str:
        self._number += 1
        return event({"type": name, **fields, "sequence_number": self._number - 1}, name)


def _usage(answer: Answer, choice: Choice) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": choice.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + choice.tokens,
    }
