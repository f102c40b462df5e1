"""The token sequence of an episode, which only grows.

Tokens that were sampled stay as they were sampled, for ever. The chat template is asked for the whole
conversation again after each reply, but only as text, to find what comes after the reply: that rest alone is
turned into tokens and appended. When the template has rewritten what came before (some drop earlier
thinking), there is no such rest, and the transcript goes on in a new line that shares the tokens up to the
rewrite. A sampled token is trained in the line that it was sampled in, and in no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from air.prefix import common_prefix
from air.types import Branch, Message, Sampled

# interleaved: one branch for the whole episode, unless the template rewrites history.
# branching: one branch for each turn. The same tokens are seen and trained in both.
Strategy = Literal["interleaved", "branching"]


class Tokenizer(Protocol):
    """What a transcript needs of air.models.chat.ChatTokenizer."""

    stop_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], add_generation_prompt: bool
    ) -> str: ...


@dataclass
class _Line:
    """Tokens, and the rendering they stand for. `marks` are (characters, tokens) where both may be cut."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # the turn that sampled a token, or -1
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def add(self, text: str, tokens: Sequence[int]) -> None:
        self.text += text
        self.tokens += tokens
        self.turns += [-1] * len(tokens)
        self.mark()

    def mark(self) -> None:
        self.marks.append((len(self.text), len(self.tokens)))

    def common(self, text: str) -> _Line:
        """A copy of this line up to the last mark before `text` becomes different."""
        shared = common_prefix(self.text, text)
        marks = [mark for mark in self.marks if mark[0] <= shared]
        characters, tokens = marks[-1]
        return _Line(text[:characters], self.tokens[:tokens], self.turns[:tokens], marks)


@dataclass(frozen=True)
class _Reply:
    """Where a turn's sampled tokens are: from `start` on in the given line."""

    line: int
    start: int
    logprobs: tuple[float, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.logprobs)


class Transcript:
    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] = (),
        strategy: Strategy = "interleaved",
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._strategy = strategy
        self._history: list[Message] = []
        self._lines = [_Line()]
        self._replies: list[_Reply] = []
        self._unrendered: tuple[str, str] | None = None  # the last reply's text and its stop token's

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds messages that were not sampled, and the template's opening of the next reply."""
        self._history += messages
        rendered = self._tokenizer.render(self._history, self._tools, True)
        end = self._end_of_reply(rendered)
        if end is None:
            self._lines.append(self._lines[-1].common(rendered))
        else:
            self._lines[-1].text = rendered[:end]
            self._lines[-1].mark()
        self._unrendered = None
        line = self._lines[-1]
        rest = rendered[len(line.text) :]
        line.add(rest, self._tokenizer.encode(rest))

    def prompt(self) -> list[int]:
        """The tokens to sample the next reply from."""
        return list(self._lines[-1].tokens)

    def append_sampled(self, sampled: Sampled) -> Message:
        """Adds a reply's tokens as they are and returns it as a message, without its stop token."""
        line, ids = self._lines[-1], sampled.token_ids
        self._replies.append(_Reply(len(self._lines) - 1, len(line.tokens), sampled.logprobs))
        line.tokens += ids
        line.turns += [len(self._replies) - 1] * len(ids)
        stopped = bool(ids) and ids[-1] in self._tokenizer.stop_ids
        text = self._tokenizer.decode(ids[:-1] if stopped else ids)
        self._unrendered = (text, self._tokenizer.decode(ids[-1:]) if stopped else "")
        reply = Message(role="assistant", content=text)
        self._history.append(reply)
        return reply

    def branches(self) -> tuple[Branch, ...]:
        """What training sees: each line up to its last sampled token; a line without any is left out."""
        if self._strategy == "branching":
            parts = [[reply] for reply in self._replies]
        else:
            parts = [[r for r in self._replies if r.line == line] for line in range(len(self._lines))]
        return tuple(self._branch(replies) for replies in parts if any(r.logprobs for r in replies))

    def _branch(self, replies: Sequence[_Reply]) -> Branch:
        line, end = self._lines[replies[0].line], replies[-1].end
        train, logprobs = [False] * end, [0.0] * end
        for reply in replies:
            train[reply.start : reply.end] = [True] * len(reply.logprobs)
            logprobs[reply.start : reply.end] = reply.logprobs
        return Branch(tuple(line.tokens[:end]), tuple(train), tuple(logprobs), tuple(line.turns[:end]))

    def _end_of_reply(self, rendered: str) -> int | None:
        """Where in the new rendering the last reply ends, or None if that rendering does not go on from
        the tokens we have.

        The stop token counts as part of the reply if it was sampled, so what separates turns (the "\\n"
        after <|im_end|>) is in the rest; if the reply was cut, its end-of-turn is in the rest too. Templates
        may trim a reply or put a space in front of it: outer whitespace need not agree.
        """
        before = self._lines[-1].text
        if not before:
            return 0
        if self._unrendered is None or not rendered.startswith(before):
            return None
        text, stop = self._unrendered
        end = len(before) + len(text)
        if not rendered.startswith(text, len(before)):
            core = text.strip()
            after = rendered[len(before) :]
            start = len(rendered) - len(after.lstrip()) if core else len(before)
            if not rendered.startswith(core, start):
                return None
            end = start + len(core)
            end += common_prefix(rendered[end:], text[len(text.rstrip()) :])
        rest = rendered[end:]
        if stop and rest.lstrip().startswith(stop):
            end = len(rendered) - len(rest.lstrip()) + len(stop)
        return end
