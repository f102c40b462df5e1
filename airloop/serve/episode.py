"""One episode behind the endpoint: whatever its agent says with the policy, in as many conversations as it likes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from airloop.engine.base import Engine, Generation, Sampling
from airloop.rollout.forest import Forest, Prompt, Reply, Strategy, Tokenizer
from airloop.rollout.schedule import stable_hash, turn_seed
from airloop.serve.chat_form import ChatRequest, call_ids, form_of, read_reply
from airloop.types import Branch, Message, Sampled


@dataclass(frozen=True)
class Choice:
    """One reply to a request: as a client gets it, and as it was sampled."""

    message: dict[str, Any]
    finish: str  # stop, length, tool_calls
    reply: Reply

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
    undelivered: dict[str, Answer] = field(default_factory=dict)  # by request: for a client that asks again

    def __post_init__(self) -> None:
        self.forest = Forest(self.tokenizer, self.strategy)
        self._by_call: dict[str, int] = {}
        self._by_form: dict[str, list[int]] = {}
        self._stops = replace(self.sampling, stop_ids=self.sampling.stop_ids or self.tokenizer.stop_ids)

    async def chat(self, request: ChatRequest) -> Answer:
        """Samples the replies to a request. ContextFull where the conversation leaves no room for one."""
        for name, value in request.asked.items():
            self.asked.setdefault(name, []).append(value)
        messages, known = self.recognise(request.messages)
        prompt = self.forest.prompt(messages, request.tools, known)
        drawn = await self._sample(prompt.token_ids, request.n, request.max_tokens, request.seed, request.asked)
        choices = tuple(self._keep(prompt, generation, request) for generation in drawn)
        return Answer(choices, len(prompt.token_ids), min(g.cached_tokens for g in drawn), drawn[0].version)

    async def generate(self, token_ids: Sequence[int], max_tokens: int | None, seed: int | None) -> tuple[Reply, str]:
        """A reply to tokens as they are; and why it ended."""
        prompt = self.forest.prompt_of_tokens(token_ids)
        (generation,) = await self._sample(prompt.token_ids, 1, max_tokens, seed)
        return self.forest.append(prompt, _sampled(generation)), generation.stop

    def branches(self) -> tuple[Branch, ...]:
        return self.forest.branches()

    def recognise(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], dict[int, int]]:
        """The conversation for the template, and which of its messages are which replies of ours."""
        known = {i: number for i, message in enumerate(messages) if (number := self._number(i, message)) is not None}
        made: list[Message] = []
        for i, message in enumerate(messages):
            if i in known:
                made.append(Message(role="assistant", content=self.forest.replies[known[i]].text))
            else:
                made.append(dict(message))  # type: ignore[arg-type]
        return made, known

    def _number(self, place: int, message: Mapping[str, Any]) -> int | None:
        if message["role"] != "assistant":
            return None
        alike = self._by_form.get(form_of(message), [])
        minted = {self._by_call.get(call) for call in call_ids(message)}
        named = [number for number in alike if minted == {number}]
        there = [number for number in alike if self.forest.replies[number].place == place]
        found = named or there or alike
        return found[-1] if found else None

    async def _sample(
        self,
        token_ids: Sequence[int],
        n: int,
        max_tokens: int | None,
        seed: int | None,
        asked: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[Generation]:
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

    def _keep(self, prompt: Prompt, generation: Generation, request: ChatRequest) -> Choice:
        sampled, halted = _until(_sampled(generation), request.stop, self.tokenizer)
        reply = self.forest.append(prompt, sampled)
        cut = generation.stop == "length" and not halted
        said = reply.text.partition(halted)[0] if halted else reply.text
        spoken = read_reply(said, tools=bool(request.tools), parser=self.parser, cut=cut, thinking=prompt.thinking)
        message = spoken.message(lambda i: self._mint(reply.number, i))
        self._by_form.setdefault(form_of(message), []).append(reply.number)
        self._by_call |= {call: reply.number for call in call_ids(message)}
        return Choice(message, "tool_calls" if spoken.calls else "length" if cut else "stop", reply)

    def _mint(self, number: int, i: int) -> str:
        """The same when the episode is repeated, and no other episode's."""
        text = f"{self.order} {self.seed} {number} {i}"
        return f"call_{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def _sampled(generation: Generation) -> Sampled:
    return Sampled(generation.token_ids, generation.logprobs, generation.stop, generation.version)


def _until(sampled: Sampled, stops: Sequence[str], tokenizer: Tokenizer) -> tuple[Sampled, str]:
    """The reply up to the token that completes one of the texts that end it, and which of them. Each of its tokens was
    drawn as any other: a reply that is ended is one that is cut."""
    if not stops or not any(stop in tokenizer.decode(sampled.token_ids) for stop in stops):
        return sampled, ""
    for end in range(1, len(sampled.token_ids) + 1):
        text = tokenizer.decode(sampled.token_ids[:end])
        found = [stop for stop in stops if stop in text]
        if found:
            first = min(found, key=text.index)
            return replace(sampled, token_ids=sampled.token_ids[:end], logprobs=sampled.logprobs[:end]), first
    return sampled, ""
