"""A reply sampled by one or several vLLM servers: the tokens received so far, and the request for the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airloop.engine.base import Sampling, TokenCallback
from airloop.engine.vllm.server import ServerLost, VllmServer
from airloop.waits import WAITS

NAMED = "token_id:"  # how a token is called beside its log-prob
ABOVE = 0.01  # no log-prob is: above 0 is only what rounding makes


@dataclass
class Reply:
    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    adapter: str
    on_tokens: TokenCallback | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached: int = 0
    first: float = 0.0
    failures: int = 0
    reached: int = 0  # tokens that were there when it last failed
    begun: int = 0  # tokens that were there when it was last asked for
    left: list[VllmServer] = field(default_factory=list)  # at which it broke off, although they live

    @property
    def stopped(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.sampling.stop_ids

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.ids) >= self.limit

    def request(self) -> dict[str, Any]:
        """For what is still missing."""
        self.begun = len(self.ids)
        return {
            "model": self.adapter,
            "token_ids": [*self.prompt, *self.ids],
            "cache_salt": self.adapter.partition("@")[0],  # what was computed by another version is not found
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},  # so that a lost piece is missed
            "sampling_params": {
                "max_tokens": self.limit - len(self.ids),
                "temperature": self.sampling.temperature,
                "top_p": self.sampling.top_p,  # these three only of who asks a policy that is not trained
                "top_k": self.sampling.top_k,
                "min_p": self.sampling.min_p,
                "seed": (self.sampling.seed + len(self.ids)) % (1 << 63),
                "stop_token_ids": list(self.sampling.stop_ids),
                "ignore_eos": True,  # where a reply ends is said above, and nowhere else
                "logprobs": 0,
                "detokenize": False,
            },
        }

    def failed(self, most: int) -> bool:
        """So often, without a token in between."""
        self.failures = self.failures + 1 if len(self.ids) == self.reached else 0
        self.reached = len(self.ids)
        return self.failures >= most

    def take(self, piece: dict[str, Any]) -> None:
        """Whole or not at all: of a piece that cannot be right no token is believed, and nobody is told of one."""
        try:
            ids, logprobs = self._read(piece)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ServerLost(f"it sent what is no piece of a reply ({type(error).__name__}: {error})") from error
        if not ids:
            return
        WAITS.touch()  # a rank with one long reply left goes on, although nothing begins or ends in it
        self.first = self.first or time.perf_counter()
        self.ids += ids
        self.logprobs += logprobs
        if self.on_tokens is not None:
            self.on_tokens(ids)

    def _read(self, piece: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Its tokens, where they are the next ones and each is what is said of it."""
        ids: list[int] = []
        logprobs: list[float] = []
        for choice in piece["choices"]:
            its = list(choice["token_ids"] or ())
            content = (choice.get("logprobs") or {}).get("content") or []
            if len(content) != len(its):
                raise ServerLost(f"{len(its)} tokens came with {len(content)} log-probs")
            ids += its
            logprobs += [_logprob(token, said) for token, said in zip(its, content, strict=True)]
        usage, count = piece.get("usage") or {}, len(self.ids) + len(ids)
        if usage.get("completion_tokens", count - self.begun) != count - self.begun:
            said = f"{count - self.begun} tokens of it have come where {usage['completion_tokens']} were sent"
            raise ServerLost(f"a piece of its reply was lost, or came twice: {said}")
        if ids and (self.ended or count > self.limit or any(token in self.sampling.stop_ids for token in ids[:-1])):
            raise ServerLost("it sent tokens behind the end of a reply")
        found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or self.cached
        self.cached = min(found, len(self.prompt))
        return ids, logprobs


def _logprob(token: int, said: dict[str, Any]) -> float:
    """Of a token, by what is said of it. vLLM says twice which it is and how likely it was: where one of them was
    altered on the way, both are not believed."""
    if type(token) is not int or token < 0:
        raise ValueError(f"{token!r} is no token")
    value = float(said["logprob"])
    if not (math.isfinite(value) and value < ABOVE):
        raise ValueError(f"{value} is no log-prob")
    name = f"{NAMED}{token}"
    if str(said.get("token", name)).startswith(NAMED) and said.get("token", name) != name:
        raise ValueError(f"token {token} came as {said['token']}")
    others = [other for other in said.get("top_logprobs") or () if other.get("token") == name]
    if any(other["logprob"] != said["logprob"] for other in others):
        raise ValueError(f"token {token} came with log-probs {said['logprob']} and {others[0]['logprob']}")
    return value
