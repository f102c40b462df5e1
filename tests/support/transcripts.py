"""A transcript as tests write it: message by message."""

from __future__ import annotations

from collections.abc import Sequence

from airloop.chat.transcript import Transcript
from airloop.types import Message, Sampled


class GrowingTranscript(Transcript):
    """It remembers what was said, so that only what is new has to be told."""

    _history: tuple[Message, ...] = ()

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds messages that were not sampled, and the template's opening of the next reply."""
        self._history = (*self._history, *messages)
        self.show(self._history)

    def append_sampled(self, sampled: Sampled) -> Message:
        message = super().append_sampled(sampled)
        self._history = (*self._history, message)
        return message
