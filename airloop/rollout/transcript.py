"""The token sequence of an episode, which only grows.

Tokens that were sampled stay as they were sampled, for ever. The chat template is asked for the whole
conversation again after each reply, but only as text, to find what comes after the reply: that rest alone is
turned into tokens and appended. When what came before has been rewritten, by the template (some drop earlier
thinking) or by the environment (some shorten old observations), there is no such rest, and the transcript goes
on in a new line. It shares the tokens up to the rewrite; after it, replies that still read the same are taken
over as they were sampled, and only what stands between them is turned into tokens again. A sampled token is
trained in the line that it was sampled in, with the context it had there, and in no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from airloop.text.prefix import common_prefix
from airloop.types import Branch, Message, Sampled

# interleaved: one branch for the whole episode, unless the template rewrites history.
# branching: one branch for each turn. The same tokens are seen and trained in both.
Strategy = Literal["interleaved", "branching"]

# Stands for a reply's text while we look where the template puts it. U+FDD1 is a non-character: no text has it.
_STAND_IN = "\ufdd1{}\ufdd1"
_STAND_INS = re.compile("\ufdd1([0-9]+)\ufdd1")


class Tokenizer(Protocol):
    """What a transcript needs of airloop.models.chat.ChatTokenizer."""

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

    def say(self, tokens: Sequence[int], turn: int) -> None:
        """Adds sampled tokens. What they say is not in `text` until a rendering has it."""
        self.tokens += tokens
        self.turns += [turn] * len(tokens)

    def mark(self) -> None:
        self.marks.append((len(self.text), len(self.tokens)))

    def common(self, text: str) -> _Line:
        """A copy of this line up to the last mark before `text` becomes different; of marks at the same character
        the first, in front of a reply of which the rendering shows nothing."""
        shared = common_prefix(self.text, text)
        characters = max(mark[0] for mark in self.marks if mark[0] <= shared)
        marks = [mark for mark in self.marks if mark[0] < characters]
        marks.append(next(mark for mark in self.marks if mark[0] == characters))
        tokens = marks[-1][1]
        return _Line(text[:characters], self.tokens[:tokens], self.turns[:tokens], marks)


@dataclass(frozen=True)
class _Reply:
    """A turn's sampled tokens, which are those from `start` on in the given line, and what they say: the text
    without the stop token, and the stop token's own text if it was sampled."""

    line: int
    start: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop: str

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


def find_replies(messages: Sequence[Message], replies: Sequence[str]) -> dict[int, int]:
    """Which messages of a conversation are which of the replies given in it, in their order. The latest are
    looked for first: what is left out of a conversation is usually its beginning."""
    found: dict[int, int] = {}
    candidates = list(enumerate(replies))
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] != "assistant":
            continue
        left = len(candidates)
        while left and candidates[left - 1][1] != messages[place]["content"]:
            left -= 1
        if left:
            found[place] = candidates[left - 1][0]
            del candidates[left - 1 :]
    return dict(sorted(found.items()))


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
        self._unrendered: _Reply | None = None  # the last reply, while no rendering holds it yet

    def extend(self, messages: Sequence[Message]) -> None:
        """Adds messages that were not sampled, and the template's opening of the next reply."""
        self.show([*self._history, *messages])

    def show(self, messages: Sequence[Message]) -> None:
        """Makes this conversation, and the template's opening of the next reply, what is seen from now on: a
        continuation of what was seen before if it reads like one, else a new line."""
        self._history = list(messages)
        rendered = self._tokenizer.render(messages, self._tools, True)
        end = self._end_of_reply(messages, rendered)
        if end is None:
            self._lines.append(self._rewritten(messages, rendered))
        else:
            self._lines[-1].text = rendered[:end]
            self._lines[-1].mark()
        self._unrendered = None
        self._render_to(self._lines[-1], rendered, len(rendered))

    def prompt(self) -> list[int]:
        """The tokens to sample the next reply from."""
        return list(self._lines[-1].tokens)

    @property
    def thinking(self) -> bool:
        """Whether the template's opening of the reply has begun a thought, as those of models that always think do."""
        return self._lines[-1].text.rstrip().endswith("<think>")

    def append_sampled(self, sampled: Sampled) -> Message:
        """Adds a reply's tokens as they are and returns it as a message, without its stop token."""
        line, ids = self._lines[-1], sampled.token_ids
        stopped = bool(ids) and ids[-1] in self._tokenizer.stop_ids
        text = self._tokenizer.decode(ids[:-1] if stopped else ids)
        stop = self._tokenizer.decode(ids[-1:]) if stopped else ""
        reply = _Reply(len(self._lines) - 1, len(line.tokens), ids, sampled.logprobs, text, stop)
        line.say(ids, len(self._replies))
        self._replies.append(reply)
        self._unrendered = reply
        message = Message(role="assistant", content=text)
        self._history.append(message)
        return message

    def branches(self) -> tuple[Branch, ...]:
        """What training sees: each line up to its last sampled token; a line without any is left out."""
        if self._strategy == "branching":
            parts = [[reply] for reply in self._replies]
        else:
            parts = [[r for r in self._replies if r.line == line] for line in range(len(self._lines))]
        return tuple(self._branch(replies) for replies in parts if any(r.token_ids for r in replies))

    def _branch(self, replies: Sequence[_Reply]) -> Branch:
        line, end = self._lines[replies[0].line], replies[-1].end
        train, logprobs = [False] * end, [0.0] * end
        for reply in replies:
            train[reply.start : reply.end] = [True] * len(reply.token_ids)
            logprobs[reply.start : reply.end] = reply.logprobs
        return Branch(tuple(line.tokens[:end]), tuple(train), tuple(logprobs), tuple(line.turns[:end]))

    def _rewritten(self, messages: Sequence[Message], rendered: str) -> _Line:
        """A new line for a conversation that does not go on from the last one, up to the last reply in it."""
        line = self._lines[-1].common(rendered)
        for turn, start, end in self._replies_in(messages, rendered):
            if start >= len(line.text):  # else it is in the part that is shared
                self._render_to(line, rendered, start)
                line.say(self._replies[turn].token_ids, turn)
                line.text = rendered[:end]
                line.mark()
        return line

    def _render_to(self, line: _Line, rendered: str, end: int) -> None:
        text = rendered[len(line.text) : end]
        line.add(text, self._tokenizer.encode(text))

    def _replies_in(self, messages: Sequence[Message], rendered: str) -> list[tuple[int, int, int]]:
        """The turns whose replies stand in the rendering as they were said, with beginning and end.

        The template is asked once more, with a stand-in for each reply: what it puts between the stand-ins
        stands between the replies. A reply that it has changed by more than outer whitespace is left out.
        """
        turns = find_replies(messages, [reply.text for reply in self._replies])
        stand_ins: list[Message] = [
            {**message, "content": _STAND_IN.format(turns[i])} if i in turns else message
            for i, message in enumerate(messages)
        ]
        # Between the pieces are the numbers of the turns: piece, turn, piece, …, piece.
        pieces = _STAND_INS.split(self._tokenizer.render(stand_ins, self._tools, True))
        found: list[tuple[int, int, int]] = []
        place = len(pieces[0]) if rendered.startswith(pieces[0]) else -1
        for turn, after in zip(map(int, pieces[1::2]), pieces[2::2], strict=True):
            if place < 0 or turn not in turns.values():
                break
            end = self._said_at(place, turn, after, rendered)
            if end is None:  # rewritten: go on behind it
                place = rendered.find(after, place)
            else:
                found.append((turn, place, _past_stop(rendered, end, self._replies[turn].stop)))
                place = end
            place += len(after) if place >= 0 else 0
        return found

    def _said_at(self, place: int, turn: int, after: str, rendered: str) -> int | None:
        """Where the reply's text ends if it stands at `place` in the rendering, trimmed or not."""
        text = self._replies[turn].text
        for form in dict.fromkeys((text, text.strip(), text.lstrip(), text.rstrip())):
            if rendered.startswith(form + after, place):
                return place + len(form)
        return None

    def _end_of_reply(self, messages: Sequence[Message], rendered: str) -> int | None:
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
        text = self._unrendered.text
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        if said[-1:] != [text]:
            return None  # the last reply was left out or put in other words, which may begin like its own
        end = len(before) + len(text)
        if not rendered.startswith(text, len(before)):
            core = text.strip()
            after = rendered[len(before) :]
            start = len(rendered) - len(after.lstrip()) if core else len(before)
            if not rendered.startswith(core, start):
                return None
            end = start + len(core)
            end += common_prefix(rendered[end:], text[len(text.rstrip()) :])
        return _past_stop(rendered, end, self._unrendered.stop)


def _past_stop(rendered: str, end: int, stop: str) -> int:
    """The end of a reply with its stop token, if one was sampled and the template has put it there."""
    rest = rendered[end:].lstrip()
    return len(rendered) - len(rest) + len(stop) if stop and rest.startswith(stop) else end
