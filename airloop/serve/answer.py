"""What a request gets, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.types import Action, Message, Sampled, Times


@dataclass(frozen=True)
class Choice:
    """One reply to a request: as a client gets it, and as it was sampled."""

    message: dict[str, Any]
    finish: str  # stop, length, tool_calls
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    halted: str = ""  # the text that ended it, of those that were to

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
    """What a reply was said to, what it does, and how it came about; as many as replies, in their order."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    reply: str
    actions: tuple[Action, ...]
    sampled: Sampled | None  # None: not of the policy, or not to be trained
    times: Times
    asked: float  # by time.monotonic()
    answered: float = field(default_factory=time.monotonic)
