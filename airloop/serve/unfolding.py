"""What of a reply is certain while it is still being sampled, so that a stream never takes a word back.

Not certain are: half a character; what may become a text that ends the reply; a thought before its end, which without
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

# A reply is looked at again when it has grown by this part: so all looks together cost as much as that many last ones.
GROWTH = 64
Piece = tuple[int, str, str]  # which reply of the answer, and what is certain anew: of its thought, of its content


@dataclass
class Unfolding:
    """One reply, as its tokens come."""

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    tools: bool = False
    thinking: bool = False  # the prompt has opened a thought
    thought: str = ""  # what was given of both
    content: str = ""
    _ids: list[int] = field(default_factory=list)
    _looked: int = 0

    def hear(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """What these tokens make certain of the thought, and of the content."""
        self._ids += token_ids
        grown = len(self._ids) - self._looked
        if grown < max(1, self._looked // GROWTH) or self._ids[-1] in self.tokenizer.stop_ids:
            return "", ""  # at its end all of it is known
        self._looked = len(self._ids)
        text = certain_text(self.tokenizer.decode(self._ids), self.stops)
        thought, content = certain_parts(text, tools=self.tools, thinking=self.thinking)
        new = thought[len(self.thought) :], content[len(self.content) :]
        self.thought, self.content = self.thought + new[0], self.content + new[1]
        return new


class Live:
    """An answer while it is being made: what is certain of it."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.news = asyncio.Event()  # there may be something to take, or it has ended
        self._pieces: list[Piece] = []

    def listen(self, prompt_tokens: int, replies: Sequence[Unfolding]) -> list[Callable[[Sequence[int]], None]]:
        """For each reply, what is to be told of its tokens as they come."""
        self.prompt_tokens = prompt_tokens
        return [lambda ids, i=i, reply=reply: self._hear(i, reply, ids) for i, reply in enumerate(replies)]  # type: ignore[misc]

    def _hear(self, i: int, reply: Unfolding, token_ids: Sequence[int]) -> None:
        thought, content = reply.hear(token_ids)
        if thought or content:
            self._pieces.append((i, thought, content))
            self.news.set()

    def take(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        self.news.clear()
        return taken


def certain_text(text: str, stops: Sequence[str]) -> str:
    """Of what was sampled so far, that which stays as it is and is part of the reply."""
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    if found:
        return text[: min(found)]
    return without_beginning(text.rstrip("\ufffd"), stops)


def certain_parts(text: str, *, tools: bool, thinking: bool) -> tuple[str, str]:
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
