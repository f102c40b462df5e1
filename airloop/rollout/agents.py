"""Agents that are models: what they have in common, and the policy under training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.chat.session import ChatSession
from airloop.types import Branch, Message, Sampled, Times


class ModelAgent(ABC):
    """An agent that can say, after each reply, how the reply came about."""

    sampled: Sampled | None = None  # the last reply's tokens, if they are ours to train on
    times: Times = Times()  # of the last reply
    cut: bool = False  # whether the last reply ended by its length
    thinking: bool = False  # whether it began inside a thought that the prompt had opened

    @abstractmethod
    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message: ...

    def branches(self) -> tuple[Branch, ...]:
        return ()

    def metrics(self) -> Mapping[str, float]:
        return {}


class PolicyAgent(ModelAgent):
    """The policy under training."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        completion = await self.session.complete(messages, tools)
        self.sampled, self.times = completion.sampled, completion.times
        self.cut, self.thinking = completion.cut, completion.thinking
        return completion.message

    def branches(self) -> tuple[Branch, ...]:
        return self.session.branches()

    def metrics(self) -> Mapping[str, float]:
        return self.session.metrics()
