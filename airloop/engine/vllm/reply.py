"""A reply sampled by one or several vLLM servers: the tokens received so far, and the request for the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airloop.engine.base import Sampling, TokenCallback
from airloop.engine.vllm.server import ServerLost


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

    @property
    def stopped(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.sampling.stop_ids

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.ids) >= self.limit

    def request(self) -> dict[str, Any]:
        """For what is still missing."""
        return {
            "model": self.adapter,
            "token_ids": [*self.prompt, *self.ids],
            "cache_salt": self.adapter.partition("@")[0],  # what was computed by another version is not found
            "stream_options": {"include_usage": True},
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
        if usage := piece.get("usage"):
            found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or self.cached
            self.cached = min(found, len(self.prompt))
        for choice in piece["choices"]:
            ids = list(choice["token_ids"] or ())
            content = (choice.get("logprobs") or {}).get("content") or []
            if len(content) != len(ids):
                raise ServerLost(f"{len(ids)} tokens came with {len(content)} log-probs")
            self.first = self.first or time.perf_counter()
            self.ids += ids
            self.logprobs += [float(one["logprob"]) for one in content]
            if ids and self.on_tokens is not None:
                self.on_tokens(ids)
