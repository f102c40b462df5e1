"""Chat completions as OpenAI's clients write them: what may be asked for, and what messages are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

from airloop.chat.actions import parse
from airloop.chat.tool_calls import JSON, MARKS, PYTHON_TAG, before_calls
from airloop.types import Action

MOST_REPLIES = 16  # to one request
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class BadRequest(Exception):
    """What is wrong with a request, for its client; `status` and `code` as OpenAI's servers have them, `details` as
    Anthropic's, by which its client knows what to do instead."""

    def __init__(
        self,
        message: str,
        *,
        param: str = "",
        code: str = "invalid_value",
        status: int = 400,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status, self.details = param, code, status, details

    def as_json(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        fields = {"message": str(self), "type": kind, "param": self.param or None, "code": self.code}
        return {"error": {**fields, "details": dict(self.details)} if self.details else fields}


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """What a request says of how to sample, whatever it asks with."""

    n: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()  # tokens that end a reply, besides those that end one anyway
    # Sampling parameters that the client requested, which the run decides.
    requested_sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatRequest(SamplingRequest):
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    stream: bool = False
    usage_in_stream: bool = False
    logprobs: bool = False


# --- what may be asked for ---------------------------------------------------------------------------------

# Parameters about the client, or about storing the answer: they do not change what is sampled.
_IGNORED = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_IGNORED |= {"parallel_tool_calls", "verbosity", "prompt_cache_retention"}
_IGNORED |= {"prompt_cache_options"}
# The run's own values are used: with others it would be another policy that is trained.
RUN_SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (-1, 1 << 31),  # -1 and 0: off
    "min_p": (0.0, 1.0),
}
_READ = {"messages", "tools", "n", "max_tokens", "max_completion_tokens", "seed", "stop", "stream", "stream_options"}
_READ |= {"logprobs", "top_logprobs", "tool_choice"}
# What would change the distribution that is sampled from, unless it has one of these values.
OFF: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
}
_MUST_BE_OFF: dict[str, tuple[Any, ...]] = {
    **OFF,
    "response_format": (None, {"type": "text"}),
    "reasoning_effort": (None, "none"),
    "modalities": (None, ["text"]),
    "functions": (None, []),
    "function_call": (None,),
    "prediction": (None,),
    "audio": (None,),
    "web_search_options": (None,),
}


_KNOWN = _IGNORED | RUN_SAMPLING.keys() | _READ | _MUST_BE_OFF.keys()
_sorted_json = json.JSONEncoder(sort_keys=True).encode


def read_request(body: Any) -> ChatRequest:
    """A chat completion's request; BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    for name, value in body.items():
        if name in _MUST_BE_OFF and value not in _MUST_BE_OFF[name]:
            why = "it would change the distribution that is sampled from, and so what is trained"
            raise BadRequest(f"{name} is not supported here: {why}.", param=name, code="unsupported_parameter")
        if name not in _KNOWN:
            raise BadRequest(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    # "required", or one tool by its name: nothing is forced, since that would be another distribution. The policy sees
    # the tools and chooses; a reply without a call is what it is, and agents know such replies.
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none", "required") and not isinstance(choice, dict):
        raise BadRequest(f"tool_choice = {json.dumps(choice)} is not known.", param="tool_choice")
    if body.get("top_logprobs"):
        why = "log-probs are those of the tokens that were sampled, and of no others"
        raise BadRequest(
            f"top_logprobs is not supported here: {why}.", param="top_logprobs", code="unsupported_parameter"
        )
    stop = body.get("stop") or ()
    options = body.get("stream_options") or {}
    return ChatRequest(
        messages=tuple(read_messages(body.get("messages"))),
        tools=tuple(_tools(body.get("tools"))) if choice != "none" else (),
        n=read_whole(body, "n", 1, MOST_REPLIES) or 1,
        max_tokens=read_whole(body, "max_completion_tokens", 1) or read_whole(body, "max_tokens", 1),
        seed=read_whole(body, "seed"),
        stop=tuple(_texts([stop] if isinstance(stop, str) else stop, "stop")),
        stream=bool(body.get("stream")),
        usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
        logprobs=bool(body.get("logprobs")),
        requested_sampling=read_sampling(body),
    )


def read_messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise BadRequest("messages must be a list with at least one message.", param="messages")
    return [_message(message, f"messages.{i}") for i, message in enumerate(given)]


_SAME = {"reasoning": "reasoning_content"}  # of vLLM's clients


def _message(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict) or str(given.get("role")) not in ROLES:
        raise BadRequest(f"{at} must be an object whose role is one of {', '.join(ROLES)}.", param=at)
    message: dict[str, Any] = {"role": ROLES[str(given["role"])], "content": text_of(given.get("content"), at)}
    if calls := given.get("tool_calls"):
        if not isinstance(calls, list):
            raise BadRequest(f"{at}.tool_calls must be a list.", param=at)
        message["tool_calls"] = [_call(call, f"{at}.tool_calls.{i}") for i, call in enumerate(calls)]
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if isinstance(given.get(name), str):
            message[_SAME.get(name, name)] = given[name]
    return message


def text_of(content: Any, at: str = "content") -> str:
    """Text, or parts that are all text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{at}: only text can be read here.", param=at)
    return "".join(texts)  # type: ignore[arg-type]


def _call(given: Any, at: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{at} must have a function with a name.", param=at)
    arguments = _read(function.get("arguments") or "{}")
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {**call, "id": given["id"]} if isinstance(given.get("id"), str) else call


def listed(given: Any, name: str) -> list[Any]:
    if given is not None and not isinstance(given, list):
        raise BadRequest(f"{name} must be a list.", param=name)
    return given or []


def _tools(given: Any) -> list[Mapping[str, Any]]:
    tools = listed(given, "tools")
    if not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) and tool["function"].get("name")
        for tool in tools
    ):
        raise BadRequest('tools must be a list of {"type": "function", "function": {…}}.', param="tools")
    return tools


def read_whole(body: Mapping[str, Any], name: str, least: int | None = None, most: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not (least or value) <= value <= (most or value):
        limits = f" from {least}" * (least is not None) + f" to {most}" * (most is not None)
        raise BadRequest(f"{name} must be a whole number{limits}.", param=name)
    return value


def read_sampling(body: Mapping[str, Any]) -> dict[str, float]:
    """What a client wants of what the run decides."""
    return {name: _number(body, name) for name in sorted(RUN_SAMPLING) if body.get(name) is not None}


def _number(body: Mapping[str, Any], name: str) -> float:
    value, (least, most) = body[name], RUN_SAMPLING[name]
    kinds = int if name == "top_k" else int | float
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} must be a number from {least:g} to {most:g}.", param=name)
    return max(value, 0)


def whole_characters(value: Any) -> Any:
    """Replaces each lone surrogate, half of a character, by U+FFFD: it could not be encoded."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(inner) for key, inner in value.items()}
    return [whole_characters(inner) for inner in value] if isinstance(value, list) else value


def _texts(given: Any, name: str) -> list[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) and text for text in given):
        raise BadRequest(f"{name} must be text, or a list of texts.", param=name)
    return list(given)


# --- what a reply says -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParsedReply:
    """A reply's text, parsed: the thought before it, its content, and the tools that it calls."""

    content: str
    thought: str = ""
    calls: tuple[Action, ...] = ()

    def message(self, call_id: Callable[[int], str]) -> dict[str, Any]:
        """As a client gets it, with ids of its calls."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call_id(i),
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for i, call in enumerate(self.calls)
            ]
        return message


def read_reply(text: str, *, tools: Sequence[Mapping[str, Any]], parser: str, cut: bool, thinking: bool) -> ParsedReply:
    """Parses a reply. With a call that cannot be parsed all of it is content; else the text before its calls. Its
    beginning can be sent before its end is known (airloop.serve.stable_prefix)."""
    thought, rest = without_thought(text, thinking)
    if not tools:
        return ParsedReply(rest, thought)
    actions, _ = parse(text, "tools", parser, cut=cut, thinking=thinking, tools=tools)
    if not all(action.kind == "tool" for action in actions):
        return ParsedReply(rest, thought)
    content = before_calls(rest) if any(mark in rest for mark in MARKS) else rest[: find_call(rest)]
    return ParsedReply(content.rstrip(), thought, tuple(actions))


# Where a call may begin: anywhere, or in a line of its own, as JSON or in a fenced block.
CALL_SIGNS = (*MARKS, PYTHON_TAG, "</think>")
LINE_SIGNS = ("{", "[", "```")
_CALL = re.compile(
    "|".join(map(re.escape, CALL_SIGNS)) + r"|^[ \t]*(?:" + "|".join(map(re.escape, LINE_SIGNS)) + ")", re.M
)


def find_call(text: str) -> int:
    """Where the first call of a reply may begin; its end where none does."""
    found = _CALL.search(text)
    return found.start() if found else len(text)


def without_thought(text: str, thinking: bool) -> tuple[str, str]:
    opened = thinking or text.lstrip().startswith("<think>")
    if not opened or "</think>" not in text:
        return "", text
    thought, _, rest = text.partition("</think>")
    return thought.lstrip().removeprefix("<think>").strip(), rest.strip()


def form_of(message: Mapping[str, Any]) -> str:
    """A canonical text of a message: its content, and its calls as names and arguments. Ids, thoughts and outer
    whitespace, which clients leave out or change, are not part of it."""
    calls = message.get("tool_calls") or []
    content = text_of(message.get("content")).strip()
    if not calls:  # as most are, and all are read anew with every request: the same text, in a third of the time
        who = "" if message["role"] == "assistant" else f", {encode_basestring_ascii(message['role'])}"
        return f"[{encode_basestring_ascii(content)}, []{who}]"
    called = [[call["function"]["name"], _read(call["function"]["arguments"])] for call in calls]
    whose = [] if message["role"] == "assistant" else [message["role"]]
    return _sorted_json([content, called, *whose])


def _read(arguments: Any) -> Any:
    """Arguments as a value; those that cannot be read, or that are nested too deeply, stay as they are."""
    try:
        return JSON.decode(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def call_ids(message: Mapping[str, Any]) -> Sequence[str]:
    return [call["id"] for call in message.get("tool_calls") or [] if "id" in call]
