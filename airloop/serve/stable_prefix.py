"""The part of a reply that will not change while it is still being sampled: what a stream may send already.

Not stable are: half a character; what may become a text that ends the reply; a thought before its end, which without
one is content; and, where there are tools, whatever may be the beginning of a call, and the white space before it.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from airloop.chat.forest import Tokenizer
from airloop.serve.chat_form import CALL_SIGNS, LINE_SIGNS, find_call, without_thought
from airloop.types import Sampled, StopReason

# A reply is decoded again when it has grown by this part: so all decoding costs as much as that many times the last.
GROWTH = 64
Piece = tuple[int, str, str]  # which reply of the answer; what is newly stable of its thought, and of its content


@dataclass
class StablePrefix:
    """One reply, decoded as its tokens are sampled."""

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    tools: bool = False
    thinking: bool = False  # the prompt has opened a thought
    thought: str = ""  # what was given of both
    content: str = ""
    _ids: list[int] = field(default_factory=list)
    _decoded: int = 0

    def add_tokens(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """The text that these tokens make stable: of the thought, and of the content."""
        self._ids += token_ids
        grown = len(self._ids) - self._decoded
        if grown < max(1, self._decoded // GROWTH) or self._ids[-1] in self.tokenizer.stop_ids:
            return "", ""  # at its end all of it is known
        self._decoded = len(self._ids)
        text = stable_text(self.tokenizer.decode(self._ids), self.stops)
        thought, content = stable_parts(text, tools=self.tools, thinking=self.thinking)
        new = thought[len(self.thought) :], content[len(self.content) :]
        self.thought, self.content = self.thought + new[0], self.content + new[1]
        return new


class StreamListener:
    """An answer while it is being sampled: collects the stable pieces of its replies for the stream."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.changed = asyncio.Event()  # there may be new pieces, or it has ended
        self._pieces: list[Piece] = []

    def token_callbacks(
        self, prompt_tokens: int, replies: Sequence[StablePrefix]
    ) -> list[Callable[[Sequence[int]], None]]:
        """For each reply, the callback for its tokens."""
        self.prompt_tokens = prompt_tokens
        return [lambda ids, i=i, reply=reply: self._add_tokens(i, reply, ids) for i, reply in enumerate(replies)]  # type: ignore[misc]

    def _add_tokens(self, i: int, reply: StablePrefix, token_ids: Sequence[int]) -> None:
        thought, content = reply.add_tokens(token_ids)
        if thought or content:
            self._pieces.append((i, thought, content))
            self.changed.set()

    def take_pieces(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        self.changed.clear()
        return taken


def stable_text(text: str, stops: Sequence[str]) -> str:
    """The part of the text so far that is part of the reply and will not change."""
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    if found:
        return text[: min(found)]
    return without_beginning(text.rstrip("\ufffd"), stops)


def stable_parts(text: str, *, tools: bool, thinking: bool) -> tuple[str, str]:
    """Of a reply that goes on after `text`: its thought, which is known as a whole or not at all, and its content."""
    start = text.lstrip()
    if thinking or start.startswith("<think>"):
        if "</think>" not in text:
            return "", ""
        thought, content = without_thought(text, thinking)
    elif "<think>".startswith(start):
        return "", ""
    else:
        thought, content = "", text
    return thought, _before_calls(content) if tools else content


def _before_calls(text: str) -> str:
    text = text[: find_call(text)]
    line = text.rfind("\n") + 1
    if any(sign.startswith(text[line:].lstrip(" \t")) for sign in LINE_SIGNS):
        text = text[:line]
    return without_beginning(text, CALL_SIGNS).rstrip()


def without_beginning(text: str, signs: Iterable[str]) -> str:
    """Without an end that may be the beginning of one of these."""
    longest = 0
    for sign in signs:
        for length in range(min(len(sign) - 1, len(text)), longest, -1):
            if text.endswith(sign[:length]):
                longest = length
                break
    return text[: len(text) - longest]


def until_stop(sampled: Sampled, stops: Sequence[str], tokenizer: Tokenizer) -> tuple[Sampled, str]:
    """The reply up to the token that completes one of the texts that end it, and which of them. Each of its tokens was
    drawn as any other: a reply that is ended is one that is cut, and not at its length."""
    if not stops or not any(stop in tokenizer.decode(sampled.token_ids) for stop in stops):
        return sampled, ""

    def ended(end: int) -> bool:
        return any(stop in tokenizer.decode(sampled.token_ids[:end]) for stop in stops)

    end = bisect.bisect_left(range(len(sampled.token_ids) + 1), True, key=ended)
    text = tokenizer.decode(sampled.token_ids[:end])
    first = min((stop for stop in stops if stop in text), key=text.index)
    ids = sampled.token_ids[:end]
    stop: StopReason = "stop" if ids[-1] in tokenizer.stop_ids else "text"
    return replace(sampled, token_ids=ids, logprobs=sampled.logprobs[:end], stop=stop), first
