"""Conversations with the policy as tokens, which are never changed: what was sampled stays as it was sampled.

A conversation is a list of messages, as whoever speaks with the policy sends it: each time the whole of it. The chat
template is asked for its text; where the text goes on from a stored reply, only the rest is turned into tokens and put
behind the reply's own. So conversations that begin alike, go back, part or run side by side are lines of a forest, and
each shares its tokens with those that it goes on from. Where what came before has been rewritten, by the template (some
drop earlier thinking) or by who speaks (some shorten old observations), a new line shares the tokens up to the rewrite;
after it, replies that still read the same are taken over as they were sampled, and only what stands between them is
turned into tokens again. A sampled token is trained in the line that it was sampled in, with the context it had there,
and in no other; that its context is what was sent is checked by a digest.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from airloop.text.prefix import common_prefix
from airloop.types import Branch, Message, Sampled

# interleaved: one branch for the whole of a line. branching: one branch for each reply. The same tokens are seen and
# trained in both.
Strategy = Literal["interleaved", "branching"]

# Stands for a reply's text while we look where the template puts it. U+FDD1 is a non-character: no text has it.
_STAND_IN = "\ufdd1{}\ufdd1"
_STAND_INS = re.compile("\ufdd1([0-9]{1,9})\ufdd1")


class Tokenizer(Protocol):
    """What a forest needs of airloop.models.chat.ChatTokenizer."""

    stop_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int: ...

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
    turns: list[int] = field(default_factory=list)  # the reply that a token is of, or -1
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    _hash: Any = None  # of the first so many tokens
    _hashed: int = 0

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

    def until(self, tokens: int, text: str) -> _Line:
        """A copy of its first tokens, which stand for `text`."""
        marks = [mark for mark in self.marks if mark[1] < tokens and mark[0] <= len(text)]
        known = (self._hash.copy(), self._hashed) if 0 < self._hashed <= tokens else (None, 0)
        return _Line(text, self.tokens[:tokens], self.turns[:tokens], [*marks, (len(text), tokens)], *known)

    def digest(self) -> bytes:
        """Of all its tokens, which are never changed: those that a line before it has read are not read again."""
        self._hash = self._hash or _hash_of(())
        self._hash.update(array("q", self.tokens[self._hashed :]))
        self._hashed = len(self.tokens)
        found: bytes = self._hash.digest()
        return found

    def common(self, text: str) -> tuple[int, int]:
        """The last mark before `text` becomes different; of marks at the same character the first, in front of a reply
        of which the rendering shows nothing."""
        shared = common_prefix(self.text, text)
        characters = max(mark[0] for mark in self.marks if mark[0] <= shared)
        return next(mark for mark in self.marks if mark[0] == characters)


@dataclass(frozen=True)
class Reply:
    """Sampled tokens, which are those from `start` on in the given line, and what they say: the text without the stop
    token, and the stop token's own text if it was sampled."""

    number: int
    place: int  # how many messages came before it
    line: int
    start: int
    characters: int  # of the line's text in front of it
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop: str
    sent: bytes  # digest of the tokens that it was sampled from
    trained: bool = True

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class Prompt:
    """What a reply is sampled from. Making one changes nothing: a reply that never comes leaves no trace."""

    line: _Line
    messages: int  # of the conversation; -1: tokens were sent in their place
    base: int | None = None  # the line that it goes on from at its very end
    length: int = 0  # of that line

    @property
    def token_ids(self) -> list[int]:
        return self.line.tokens

    @property
    def thinking(self) -> bool:
        """Whether the template's opening of the reply has begun a thought, as those of models that always think do."""
        return self.line.text.rstrip().endswith("<think>")


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


class Forest:
    """Every conversation of one episode. Several may be under way at once,
    and several replies may be sampled from one prompt.

        prompt = forest.prompt(messages)
        reply = forest.append(prompt, await sample(prompt.token_ids))
    """

    def __init__(self, tokenizer: Tokenizer, strategy: Strategy = "interleaved") -> None:
        self._tokenizer = tokenizer
        self._strategy = strategy
        self._lines: list[_Line] = []
        self.replies: list[Reply] = []

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        known: Mapping[int, int] | None = None,
    ) -> Prompt:
        """The tokens to sample the next reply of a conversation from. `known` says which of its messages are which
        replies, by their places and numbers; a known reply's message has its text. Without it they are told by their
        text."""
        rendered = self._tokenizer.render(messages, tools, True)
        own = find_replies(messages, [reply.text for reply in self.replies]) if known is None else dict(known)
        found = self._continued(messages, own, rendered)
        if found is None:
            found = Prompt(self._rewritten(messages, tools, own, rendered), len(messages))
        self._render_to(found.line, rendered, len(rendered))
        return found

    def prompt_of_tokens(self, token_ids: Sequence[int]) -> Prompt:
        """The same for a client that has tokens in place of messages: behind the line that they go on from, if any."""
        for number, line in enumerate(self._lines):
            length = len(line.tokens)
            if length and list(token_ids[:length]) == line.tokens:
                going_on = line.until(length, line.text)
                going_on.add("", token_ids[length:])
                return Prompt(going_on, -1, number, length)
        return Prompt(_Line(tokens=list(token_ids), turns=[-1] * len(token_ids)), -1)

    def append(self, prompt: Prompt, sampled: Sampled, *, trained: bool = True) -> Reply:
        """Keeps a reply's tokens as they are, behind those that they were sampled from."""
        ids = sampled.token_ids
        stopped = bool(ids) and ids[-1] in self._tokenizer.stop_ids
        text = self._tokenizer.decode(ids[:-1] if stopped else ids)
        stop = self._tokenizer.decode(ids[-1:]) if stopped else ""
        base, line = prompt.base, prompt.line.until(len(prompt.line.tokens), prompt.line.text)
        sent, start, characters = line.digest(), len(line.tokens), len(line.text)
        if base is None or len(self._lines[base].tokens) != prompt.length:  # somebody else has gone on from there
            base = len(self._lines)
            self._lines.append(line)
        else:
            self._lines[base] = line
        reply = Reply(
            number=len(self.replies),
            place=prompt.messages,
            line=base,
            start=start,
            characters=characters,
            token_ids=ids,
            logprobs=sampled.logprobs,
            text=text,
            stop=stop,
            sent=sent,
            trained=trained,
        )
        line.say(ids, reply.number)
        self.replies.append(reply)
        return reply

    def branches(self) -> tuple[Branch, ...]:
        """What training sees: each line up to its last sampled token; a line without any is left out. The last one has
        the last reply."""
        trained = [reply for reply in self.replies if reply.trained and reply.token_ids]
        if self._strategy == "branching":
            parts = [[reply] for reply in trained]
        else:
            parts = [[r for r in trained if r.line == line] for line in range(len(self._lines))]
        parts = sorted((replies for replies in parts if replies), key=lambda replies: replies[-1].number)
        return tuple(self._branch(replies) for replies in parts)

    def _branch(self, replies: Sequence[Reply]) -> Branch:
        line, end = self._lines[replies[0].line], replies[-1].end
        train, logprobs = [False] * end, [0.0] * end
        for reply in replies:
            came_back = tuple(line.tokens[reply.start : reply.end])
            if digest(line.tokens[: reply.start]) != reply.sent or came_back != reply.token_ids:
                raise AssertionError(f"reply {reply.number} would be trained in other tokens than it was sampled in")
            train[reply.start : reply.end] = [True] * len(reply.token_ids)
            logprobs[reply.start : reply.end] = reply.logprobs
        return Branch(tuple(line.tokens[:end]), tuple(train), tuple(logprobs), tuple(line.turns[:end]))

    # --- where a conversation goes on from ----------------------------------------------------------------

    def _continued(self, messages: Sequence[Message], own: Mapping[int, int], rendered: str) -> Prompt | None:
        """Behind the last reply in the conversation, if its rendering goes on from the tokens that end in it."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if last not in own:
            return None  # the last reply was left out or put in other words, which may begin like its own
        said = self.replies[own[last]]
        # Of replies of one text, the one told may be another: an empty one to this very prompt, with nothing behind.
        first = [said] if said.place in (last, -1) else []
        others = (r for r in reversed(self.replies) if r.text == said.text and r.place == last and r is not said)
        for reply in itertools.chain(first, others):
            line = self._lines[reply.line]
            end = _end_of_reply(reply, line.text[: reply.characters], rendered)
            if end is not None:
                whole = len(line.tokens) == reply.end
                base = reply.line if whole else None
                return Prompt(line.until(reply.end, rendered[:end]), len(messages), base, reply.end)
        return None

    def _rewritten(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], own: Mapping[int, int], rendered: str
    ) -> _Line:
        """A new line for a conversation that does not go on from a stored one, up to the last reply in it."""
        shared = [(*line.common(rendered), number) for number, line in enumerate(self._lines)]
        line = _Line()
        if shared:
            characters, tokens, number = max(shared)
            line = self._lines[number].until(tokens, rendered[:characters])
        for reply, start, end in self._replies_in(messages, tools, own, rendered):
            if start >= len(line.text):  # else it is in the part that is shared
                self._render_to(line, rendered, start)
                line.say(reply.token_ids, reply.number)
                line.text = rendered[:end]
                line.mark()
        return line

    def _render_to(self, line: _Line, rendered: str, end: int) -> None:
        text = rendered[len(line.text) : end]
        line.add(text, self._tokenizer.encode(text))

    def _replies_in(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], own: Mapping[int, int], rendered: str
    ) -> list[tuple[Reply, int, int]]:
        """The replies that stand in the rendering as they were said, with beginning and end.

        The template is asked once more, with a stand-in for each reply: what it puts between the stand-ins
        stands between the replies. A reply that it has changed by more than outer whitespace is left out.
        """
        if not own:
            return []
        stand_ins: list[Message] = [
            {**message, "content": _STAND_IN.format(own[i])} if i in own else message
            for i, message in enumerate(messages)
        ]
        # Between the pieces are the numbers of the replies: piece, number, piece, …, piece.
        pieces = _STAND_INS.split(self._tokenizer.render(stand_ins, tools, True))
        found: list[tuple[Reply, int, int]] = []
        place = len(pieces[0]) if rendered.startswith(pieces[0]) else -1
        for number, after in zip(map(int, pieces[1::2]), pieces[2::2], strict=True):
            if place < 0 or number not in own.values():
                break
            reply = self.replies[number]
            end = _said_at(place, reply.text, after, rendered)
            if end is None:  # rewritten: go on behind it
                place = rendered.find(after, place)
            else:
                found.append((reply, place, _past_stop(rendered, end, reply.stop)))
                place = end
            place += len(after) if place >= 0 else 0
        return found


def digest(tokens: Sequence[int]) -> bytes:
    found: bytes = _hash_of(tokens).digest()
    return found


def _hash_of(tokens: Sequence[int]) -> Any:
    return hashlib.blake2b(array("q", tokens), digest_size=16)


def _said_at(place: int, text: str, after: str, rendered: str) -> int | None:
    """Where a reply's text ends if it stands at `place` in the rendering, trimmed or not."""
    for form in dict.fromkeys((text, text.strip(), text.lstrip(), text.rstrip())):
        if rendered.startswith(form + after, place):
            return place + len(form)
    return None


def _end_of_reply(reply: Reply, before: str, rendered: str) -> int | None:
    """Where in the new rendering the reply ends, or None if that rendering does not go on from the tokens we have.

    The stop token counts as part of the reply if it was sampled, so what separates turns (the "\\n" after <|im_end|>)
    is in the rest; if the reply was cut, its end-of-turn is in the rest too. Templates may trim a reply or put a space
    in front of it: outer whitespace need not agree.
    """
    if not rendered.startswith(before):
        return None
    text = reply.text
    end = len(before) + len(text)
    if not rendered.startswith(text, len(before)):
        core = text.strip()
        after = rendered[len(before) :]
        start = len(rendered) - len(after.lstrip()) if core else len(before)
        if not rendered.startswith(core, start):
            return None
        end = start + len(core)
        end += common_prefix(rendered[end:], text[len(text.rstrip()) :])
    return _past_stop(rendered, end, reply.stop)


def _past_stop(rendered: str, end: int, stop: str) -> int:
    """The end of a reply with its stop token, if one was sampled and the template has put it there."""
    rest = rendered[end:].lstrip()
    return len(rendered) - len(rest) + len(stop) if stop and rest.startswith(stop) else end
