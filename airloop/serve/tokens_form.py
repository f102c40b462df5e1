"""Requests and answers with token ids in place of messages, as vLLM's /inference/v1/generate has them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airloop.chat.forest import Reply
from airloop.serve.chat_form import (
    OFF,
    RUN_SAMPLING,
    BadRequest,
    SamplingRequest,
    read_sampling,
    read_whole,
)
from airloop.types import StopReason

MOST_STOP_IDS = 64  # each token that is sampled is looked for among them

# Of the request: about the client, its place in a queue and what is kept of its prompt.
_IGNORED = {"model", "cache_salt", "priority"}
_MUST_BE_OFF: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "stream_options": (None,),
    "features": (None,),
    "kv_transfer_params": (None,),
}
# Of its sampling: about text, of which none is sent.
_NO_TEXT = {"detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"}
_NO_SAMPLING: dict[str, tuple[Any, ...]] = {
    **OFF,
    "n": (None, 1),
    "stop": (None, [], ""),
    "bad_words": (None, []),
    "allowed_token_ids": (None, []),
    "structured_outputs": (None,),
    # Those of the sampled tokens come with every answer; there are none of others, nor of the prompt.
    "logprobs": (None, False, True, 0, 1),
    "prompt_logprobs": (None, False),
}


@dataclass(frozen=True)
class TokensRequest(SamplingRequest):
    token_ids: tuple[int, ...]
    request_id: str


def read_tokens_request(body: Any) -> TokensRequest:
    """BadRequest says what of it cannot be had."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    _check_known(body, {"token_ids", "sampling_params", "request_id", *_IGNORED}, _MUST_BE_OFF, "")
    if not (ids := _token_ids(body.get("token_ids"), "token_ids")):
        raise BadRequest("token_ids must not be empty.", param="token_ids")
    sampling = body.get("sampling_params")
    if not isinstance(sampling := {} if sampling is None else sampling, dict):
        raise BadRequest("sampling_params must be an object.", param="sampling_params")
    known = {"max_tokens", "seed", "stop_token_ids", *RUN_SAMPLING, *_NO_TEXT}
    _check_known(sampling, known, _NO_SAMPLING, "sampling_params.")
    stop_ids = _token_ids(sampling.get("stop_token_ids") or [], "stop_token_ids")
    if len(stop_ids) > MOST_STOP_IDS:
        raise BadRequest(f"stop_token_ids may be {MOST_STOP_IDS} at most.", param="stop_token_ids")
    return TokensRequest(
        ids,
        str(body.get("request_id") or secrets.token_hex(8)),
        max_tokens=read_whole(sampling, "max_tokens", 1),
        seed=read_whole(sampling, "seed"),
        stop_ids=stop_ids,
        requested_sampling=read_sampling(sampling),
    )


def _check_known(given: Mapping[str, Any], known: set[str], off: Mapping[str, tuple[Any, ...]], at: str) -> None:
    for name, value in given.items():
        if name not in known and not (name in off and value in off[name]):
            what = f"{at}{name} is not supported here"
            why = f", but for {' or '.join(map(json.dumps, off[name]))}" if name in off else ""
            raise BadRequest(f"{what}{why}.", param=name, code="unsupported_parameter")


def _token_ids(given: Any, name: str) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(i) is int and i >= 0 for i in given):
        raise BadRequest(f"{name} must be a list of whole numbers.", param=name)
    return tuple(given)


def tokens_answer(request: TokensRequest, reply: Reply, stop: StopReason) -> dict[str, Any]:
    logprobs: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(reply.token_ids, reply.logprobs, strict=True)
    ]
    finish = "length" if stop == "length" else "stop"
    choice = {"index": 0, "token_ids": list(reply.token_ids), "finish_reason": finish}
    return {"request_id": request.request_id, "choices": [{**choice, "logprobs": {"content": logprobs}}]}
