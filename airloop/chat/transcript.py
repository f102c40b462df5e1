"""The token sequence of an episode that is one conversation, which only grows; what is stored of it is a forest's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airloop.chat.forest import Forest, Prompt, Strategy, Tokenizer
from airloop.types import Branch, Message, Sampled


class Transcript:
    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] = (),
        strategy: Strategy = "interleaved",
    ) -> None:
        self._forest = Forest(tokenizer, strategy)
        self._tools = tools
        self._prompt: Prompt | None = None

    def show(self, messages: Sequence[Message]) -> None:
        """Makes this conversation, and the template's opening of the next reply, what is seen from now on: a
        continuation of what was seen before if it reads like one, else a new line."""
        self._prompt = self._forest.prompt(messages, self._tools)

    @property
    def shown(self) -> Prompt:
        assert self._prompt is not None, "nothing was shown yet"
        return self._prompt

    def prompt(self) -> list[int]:
        """The tokens to sample the next reply from."""
        return list(self.shown.token_ids)

    @property
    def thinking(self) -> bool:
        return self.shown.thinking

    def append_sampled(self, sampled: Sampled) -> Message:
        """Adds a reply's tokens as they are and returns it as a message, without its stop token."""
        reply = self._forest.append(self.shown, sampled)
        return Message(role="assistant", content=reply.text)

    def branches(self) -> tuple[Branch, ...]:
        return self._forest.branches()
