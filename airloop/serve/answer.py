"""The answer to a request, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.types import Action, Message, Sampled, Times


@dataclass(frozen=True)
class Choice:
    """One reply to a request: as the client gets it, and as it was sampled."""

    message: dict[str, Any]
    finish: str  # stop, length, tool_calls
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    number: int  # of the reply in its episode
    stop_text: str = ""  # the stop text that ended it

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Answer:
    choices: tuple[Choice, ...]
    prompt_tokens: int
    cached_tokens: int
    version: int


@dataclass(frozen=True)
class Exchange:
    """A reply with the conversation that it answers, its actions and its tokens; one for each reply, in their order."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    reply: str
    actions: tuple[Action, ...]
    sampled: Sampled | None  # None: not of the policy, or not to be trained
    times: Times
    asked_at: float  # by time.monotonic()
    answered_at: float = field(default_factory=time.monotonic)
