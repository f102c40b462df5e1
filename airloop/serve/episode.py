"""One episode behind the endpoint: whatever its agent says with the policy, in as many conversations as it likes."""

from __future__ import annotations

import asyncio
import bisect
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airloop.chat.forest import Forest, Prompt, Reply, Strategy, Tokenizer
from airloop.engine.base import Engine, Generation, Sampling
from airloop.seeds import stable_hash, turn_seed
from airloop.serve.chat_form import BadRequest, ChatRequest, call_ids, form_of, read_reply
from airloop.types import Branch, Message, Sampled

KEPT = 64  # answers, the latest ones


@dataclass(frozen=True)
class Choice:
    """One reply to a request: as a client gets it, and as it was sampled."""

    message: dict[str, Any]
    finish: str  # stop, length, tool_calls
    reply: Reply
    halted: str = ""  # the text that ended it, of those that were to

    @property
    def tokens(self) -> int:
        return len(self.reply.token_ids)


@dataclass(frozen=True)
class Answer:
    choices: tuple[Choice, ...]
    prompt_tokens: int
    cached_tokens: int
    version: int


@dataclass
class ServedEpisode:
    """The conversations of one agent. A reply that comes back as it was sent is the very tokens that were sampled;
    one that comes back changed is text like any other.

        episode = ServedEpisode(engine, tokenizer, Sampling(max_tokens=200), seed=1)
        answer = await episode.chat(read_request({"messages": [{"role": "user", "content": "1+1="}]}))
    """

    engine: Engine
    tokenizer: Tokenizer
    sampling: Sampling
    seed: int
    order: str = ""
    parser: str = "auto"
    strategy: Strategy = "interleaved"
    # What is sampled is trained: the run's temperature counts and not the client's, whose seed is only mixed in, or all
    # episodes of a group would be alike.
    training: bool = True
    requests: int = 0
    abandoned: int = 0  # requests whose client was gone before the reply
    asked: dict[str, list[Any]] = field(default_factory=dict)  # sampling that clients wanted and the run decides
    # By request, of those that were asked for the first time: for a client that never got its answer and asks again.
    answers: dict[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forest = Forest(self.tokenizer, self.strategy)
        self._by_call: dict[str, int] = {}
        self._by_form: dict[str, list[int]] = {}
        self._after: dict[int, str] = {}  # what was said before each reply
        self._stops = replace(self.sampling, stop_ids=self.sampling.stop_ids or self.tokenizer.stop_ids)

    async def chat(self, request: ChatRequest) -> Answer:
        """Samples the replies to a request. ContextFull where the conversation leaves no room for one."""
        messages, known, before = self.recognise(request.messages)
        prompt = self.forest.prompt(messages, request.tools, known)
        drawn = await self._sample(prompt.token_ids, request.n, request.max_tokens, request.seed, request.asked)
        choices = tuple(self._keep(prompt, generation, request, before) for generation in drawn)
        return Answer(choices, len(prompt.token_ids), min(g.cached_tokens for g in drawn), drawn[0].version)

    async def generate(
        self, token_ids: Sequence[int], max_tokens: int | None, seed: int | None, asked: Mapping[str, Any]
    ) -> tuple[Reply, str]:
        """A reply to tokens as they are; and why it ended."""
        if max(token_ids, default=0) >= self.tokenizer.vocab_size:
            raise BadRequest(f"There is no token {max(token_ids)}.", param="token_ids")
        prompt = self.forest.prompt_of_tokens(token_ids)
        (generation,) = await self._sample(prompt.token_ids, 1, max_tokens, seed, asked)
        return self.forest.append(prompt, _sampled(generation)), generation.stop

    def branches(self) -> tuple[Branch, ...]:
        return self.forest.branches()

    def recognise(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], dict[int, int], str]:
        """The conversation for the template, which of its messages are which replies of ours, and what stands for all
        of it."""
        before, known = "", dict[int, int]()
        for i, message in enumerate(messages):
            if (number := self._number(message, before)) is not None:
                known[i] = number
            before = _further(before, message)
        made: list[Message] = []
        for i, message in enumerate(messages):
            if i in known:
                made.append(Message(role="assistant", content=self.forest.replies[known[i]].text))
            else:
                foreign = {"foreign": True} if message["role"] == "assistant" else {}
                made.append({**message, **foreign})  # type: ignore[typeddict-item]
        return made, known, before

    def _number(self, message: Mapping[str, Any], before: str) -> int | None:
        if message["role"] != "assistant":
            return None
        alike = self._by_form.get(form_of(message), [])
        minted = {self._by_call.get(call) for call in call_ids(message)}
        named = [number for number in alike if minted == {number}]
        after = [number for number in alike if self._after[number] == before]
        if thought := message.get("reasoning_content"):
            after = [number for number in after if thought in self.forest.replies[number].text] or after
        found = named or after or alike
        # Of several that differ in what they thought, and that all were said elsewhere, none is the one.
        same = len({self.forest.replies[number].text for number in found}) == 1
        return found[-1] if found and (same or found is not alike) else None

    async def _sample(
        self,
        token_ids: Sequence[int],
        n: int,
        max_tokens: int | None,
        seed: int | None,
        asked: Mapping[str, Any],
    ) -> list[Generation]:
        for name, value in asked.items():
            self.asked.setdefault(name, []).append(value)
        number, self.requests = self.requests, self.requests + 1
        most = min(self._stops.max_tokens, max_tokens or self._stops.max_tokens)
        own = replace(self._stops, max_tokens=most, **({} if self.training else asked))
        draws = [replace(own, seed=self._seed(number, i, seed)) for i in range(n)]
        orders = [f"{self.order}-{number:03d}" + f".{i}" * (n > 1) for i in range(n)]
        try:
            return await asyncio.gather(
                *(self.engine.generate(token_ids, s, order=o) for s, o in zip(draws, orders, strict=True))
            )
        except asyncio.CancelledError:
            self.abandoned += 1
            raise

    def _seed(self, number: int, i: int, seed: int | None) -> int:
        if seed is not None and not self.training:
            return stable_hash("request", seed, i)
        own = turn_seed(self.seed, number)
        return own if i == 0 and seed is None else stable_hash("request", own, i, seed)

    def keep_answer(self, digest: str, answer: Answer) -> None:
        """For a client that never gets it and asks again."""
        self.answers[digest] = answer
        if len(self.answers) > KEPT:
            del self.answers[next(iter(self.answers))]

    def _keep(self, prompt: Prompt, generation: Generation, request: ChatRequest, before: str) -> Choice:
        sampled, halted = _until(_sampled(generation), request.stop, self.tokenizer)
        reply = self.forest.append(prompt, sampled)
        cut = generation.stop == "length" and not halted
        said = reply.text.partition(halted)[0] if halted else reply.text
        spoken = read_reply(said, tools=bool(request.tools), parser=self.parser, cut=cut, thinking=prompt.thinking)
        message = spoken.message(lambda i: self._mint(reply.number, i))
        self._by_form.setdefault(form_of(message), []).append(reply.number)
        self._after[reply.number] = before
        self._by_call |= {call: reply.number for call in call_ids(message)}
        return Choice(message, "tool_calls" if spoken.calls else "length" if cut else "stop", reply, halted)

    def _mint(self, number: int, i: int) -> str:
        """The same when the episode is repeated, and no other's. Some templates take nine letters and no more."""
        text = f"{self.order} {self.seed} {number} {i}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()[:9]


def _sampled(generation: Generation) -> Sampled:
    return Sampled(generation.token_ids, generation.logprobs, generation.stop, generation.version)


def _until(sampled: Sampled, stops: Sequence[str], tokenizer: Tokenizer) -> tuple[Sampled, str]:
    """The reply up to the token that completes one of the texts that end it, and which of them. Each of its tokens was
    drawn as any other: a reply that is ended is one that is cut."""
    if not stops or not any(stop in tokenizer.decode(sampled.token_ids) for stop in stops):
        return sampled, ""

    def ended(end: int) -> bool:
        return any(stop in tokenizer.decode(sampled.token_ids[:end]) for stop in stops)

    end = bisect.bisect_left(range(len(sampled.token_ids) + 1), True, key=ended)
    text = tokenizer.decode(sampled.token_ids[:end])
    first = min((stop for stop in stops if stop in text), key=text.index)
    return replace(sampled, token_ids=sampled.token_ids[:end], logprobs=sampled.logprobs[:end]), first


def _further(before: str, message: Mapping[str, Any]) -> str:
    """Stands for all that was said, message by message."""
    return hashlib.blake2b(f"{before} {form_of(message)}".encode(), digest_size=16).hexdigest()
