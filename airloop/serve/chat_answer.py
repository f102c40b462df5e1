"""A chat completion's answer, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.chat.forest import Tokenizer
from airloop.serve.answer import Answer, Choice
from airloop.serve.chat_form import BadRequest, ChatRequest
from airloop.serve.stream import Form, event

CHUNK = "chat.completion.chunk"


class ChatForm(Form):
    """OpenAI's chat completions."""

    def __init__(self, model: str, asked: ChatRequest, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._asked = asked
        self._tokenizer = tokenizer

    def whole(self, answer: Answer) -> dict[str, Any]:
        choices = [
            {"index": i, "message": choice.message, "finish_reason": choice.finish, "logprobs": self._logprobs(choice)}
            for i, choice in enumerate(answer.choices)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": _usage(answer)}

    def begin(self, prompt_tokens: int) -> Iterator[str]:
        return iter(())

    def piece(self, i: int, thought: str, content: str) -> Iterator[str]:
        parts = {"reasoning_content": thought, "content": content}
        yield self._chunk(i, {**self._opening(i), **{name: text for name, text in parts.items() if text}})
        self.record_sent(i, thought, content)

    def end(self, answer: Answer) -> Iterator[str]:
        for i, choice in enumerate(answer.choices):
            logprobs = self._logprobs(choice)
            if (delta := self._rest(i, choice.message)) or logprobs:
                yield self._chunk(i, delta, logprobs=logprobs)
            yield self._chunk(i, {}, finish=choice.finish)
        if self._asked.usage_in_stream:
            yield event({**self._head, "object": CHUNK, "choices": [], "usage": _usage(answer)})
        yield "data: [DONE]\n\n"

    def fail(self, error: BadRequest) -> Iterator[str]:
        yield event(error.as_json())

    def _opening(self, i: int) -> dict[str, Any]:
        return {} if i in self._sent else {"role": "assistant"}

    def _rest(self, i: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """What was not sent yet of a reply."""
        thought, content = self.unsent(i, message)
        delta = {**self._opening(i)}
        if thought:
            delta["reasoning_content"] = thought
        if content or i not in self._sent:
            delta["content"] = message["content"] if i not in self._sent else content
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        return delta

    def _chunk(self, i: int, delta: Mapping[str, Any], *, finish: str | None = None, logprobs: Any = None) -> str:
        piece = {"index": i, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head, "object": CHUNK, "choices": [piece]})

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """Of all tokens of a reply, calls and thoughts included; in a stream they come with its end."""
        return _logprobs(choice, self._tokenizer) if self._asked.logprobs else None


def _usage(answer: Answer) -> dict[str, Any]:
    sampled = sum(choice.tokens for choice in answer.choices)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _logprobs(choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    content = []
    for token, logprob in zip(choice.token_ids, choice.logprobs, strict=True):
        text = tokenizer.decode([token])
        content.append(
            {"token": text, "token_id": token, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        )
    return {"content": content, "refusal": None}
