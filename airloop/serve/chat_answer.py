"""A chat completion's answer, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airloop.chat.forest import Tokenizer
from airloop.serve.chat_form import ChatRequest
from airloop.serve.episode import Answer, Choice


def completion(head: Mapping[str, Any], answer: Answer, asked: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    choices = [
        {
            "index": i,
            "message": choice.message,
            "finish_reason": choice.finish,
            "logprobs": _logprobs(choice, tokenizer) if asked.logprobs else None,
        }
        for i, choice in enumerate(answer.choices)
    ]
    return {**head, "object": "chat.completion", "choices": choices, "usage": _usage(answer)}


def chunks(
    head: Mapping[str, Any], answer: Answer, asked: ChatRequest, tokenizer: Tokenizer
) -> Iterator[dict[str, Any]]:
    chunk = {**head, "object": "chat.completion.chunk"}
    for i, choice in enumerate(answer.choices):
        message = dict(choice.message)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        logprobs = _logprobs(choice, tokenizer) if asked.logprobs else None
        for delta, finish in ((message, None), ({}, choice.finish)):
            piece = {"index": i, "delta": delta, "finish_reason": finish, "logprobs": logprobs if delta else None}
            yield {**chunk, "choices": [piece]}
    if asked.usage_in_stream:
        yield {**chunk, "choices": [], "usage": _usage(answer)}


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
