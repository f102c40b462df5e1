"""An agent that needs no model: it gives replies that were written before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airloop.types import Message


class Script:
    """Gives its replies in order, and the last one again if asked for more. Where it is it reads from the messages."""

    def __init__(self, *replies: Message | str) -> None:
        self.replies = [Message(role="assistant", content=r) if isinstance(r, str) else r for r in replies]

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        given = sum(message["role"] == "assistant" for message in messages)
        return self.replies[min(given, len(self.replies) - 1)]
