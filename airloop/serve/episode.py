"""One episode behind the endpoint: all requests of its agent to the policy, in any number of conversations."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airloop.chat.forest import Forest, Prompt, Reply, Strategy, Tokenizer
from airloop.engine.base import ContextFull, Engine, Generation, Sampling, TokenCallback
from airloop.errors import AirError
from airloop.seeds import stable_hash, turn_seed
from airloop.serve.answer import Answer, Choice, Exchange
from airloop.serve.cancellation import Stoppable
from airloop.serve.chat_form import BadRequest, ChatRequest, ParsedReply, SamplingRequest, call_ids, form_of, read_reply
from airloop.serve.refusals import Refusals
from airloop.serve.stable_prefix import StablePrefix, StreamListener, until_stop
from airloop.serve.tokens_form import TokensRequest
from airloop.types import Action, Branch, Message, Observation, Sampled, StopReason, Times, Turn, shown_anew

T = TypeVar("T")
KEPT_ANSWERS = 64  # answers, the latest ones
FEW = 1024  # messages, or tokens, that take no time to speak of
LONGEST_TOKEN = 256  # characters; those that stand for white space are the longest


@dataclass
class ServedEpisode:
    """The conversations of one agent. A reply that a later request repeats unchanged keeps the tokens that were
    sampled; a changed one is text like any other.

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
    most_requests: int | None = None
    # Whether replies in a conversation are trained; the second argument is the episode's first conversation.
    trains: Callable[[Sequence[Message], Sequence[Message]], bool] = lambda messages, first: True
    requests: int = 0
    requests_exceeded: bool = False  # there were more requests than most_requests
    full_after: int = -1  # how many replies there were when a conversation last had no room left for one
    failure: Exception | None = None  # the first failure of the infrastructure: it fails the episode, whatever follows
    abandoned: int = 0  # requests whose client disconnected before the reply
    refusals: Refusals = field(default_factory=Refusals)
    requested_sampling: dict[str, list[Any]] = field(default_factory=dict)  # by parameter: the run decides
    # By the digest of a request's body, the same to the byte: for a client that did not receive its answer and retries.
    answers: dict[bytes, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forest = Forest(self.tokenizer, self.strategy)
        self.exchanges: list[Exchange] = []
        self.opening: tuple[Message, ...] = ()
        self._under_way: set[Stoppable] = set()
        self.delivered: set[int] = set()  # replies that a later conversation had in it
        self._over = False
        self._prompt_tokens = self._cached_tokens = 0
        self._thoughts: dict[int, str] = {}
        self._by_call: dict[str, int] = {}
        self._by_form: dict[str, list[int]] = {}
        self._by_place: dict[tuple[bytes, str], list[int]] = {}  # by the conversation before it, and its content

    async def chat(self, request: ChatRequest, listener: StreamListener | None = None) -> Answer:
        """Samples the replies to a request; `listener` gets their tokens meanwhile. ContextFull where the conversation
        leaves no room for one."""
        asked, number = time.monotonic(), self.count_request()
        self._check_size(request)
        messages, known, before = self.recognise(request.messages)
        self.delivered.update(known.values())
        self.opening = self.opening or tuple(messages)
        prompt = self.forest.prompt(messages, request.tools, known)
        on_tokens = self._listeners(listener, prompt, request) if listener else []
        drawn = await self._sample(prompt.token_ids, number, request, on_tokens)
        choices = tuple(self._keep(prompt, generation, request, messages, before, asked) for generation in drawn)
        return Answer(choices, len(prompt.token_ids), min(g.cached_tokens for g in drawn), drawn[0].version)

    def _listeners(self, listener: StreamListener, prompt: Prompt, request: ChatRequest) -> list[TokenCallback]:
        form = (request.stop, bool(request.tools), prompt.thinking)
        return listener.token_callbacks(
            len(prompt.token_ids), [StablePrefix(self.tokenizer, *form) for _ in range(request.n)]
        )

    async def generate(self, request: TokensRequest) -> tuple[Reply, StopReason]:
        """A reply to tokens as they are; and why it ended."""
        began, number, token_ids = time.monotonic(), self.count_request(), request.token_ids
        if len(token_ids) > FEW and len(token_ids) >= (context := self.engine.describe().context):
            self.full_after = len(self.exchanges)
            raise ContextFull(f"{len(token_ids)} tokens do not fit a context of {context}")
        for name, ids in (("token_ids", token_ids), ("stop_token_ids", request.stop_ids)):
            if max(ids, default=0) >= self.tokenizer.vocab_size:
                raise BadRequest(f"There is no token {max(ids)}.", param=name)
        prompt = self.forest.prompt_of_tokens(token_ids)
        conversation = (Message(role="user", content=self.tokenizer.decode(token_ids)),)
        self.opening = self.opening or conversation
        (generation,) = await self._sample(prompt.token_ids, number, request)
        sampled, times = self._sampled(generation), _times(generation)
        trained = self.trains(conversation, self.opening)
        reply = self.forest.append(prompt, sampled, trained=trained)
        noted = sampled if trained else None
        self.exchanges.append(
            Exchange(conversation, (), reply.text, (Action("text", reply.text),), noted, times, began)
        )
        return reply, sampled.stop

    @contextmanager
    def defects_noted(self) -> Iterator[None]:
        """An error of the endpoint's own is a failure of the infrastructure: the episode is not scored."""
        try:
            yield
        except (BadRequest, ContextFull, AirError):
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise

    @property
    def lost(self) -> bool:
        """A request was broken off or had no room; one that is under way may have been, unheard."""
        return bool(self.abandoned or self.refusals.crowded or self._under_way)

    @property
    def context_full(self) -> bool:
        """Whether it ended so: an agent that was refused for its length, shortened it and went on did not."""
        return self.full_after == len(self.exchanges)

    def branches(self) -> tuple[Branch, ...]:
        return self.forest.branches()

    def turns(self, ended: float) -> tuple[Turn, ...]:
        """One for each reply, in the order in which they came; conversations that ran side by side take turns. What the
        agent did with a reply is its own: all that is known of it is how long it took. `ended`: when the episode did.
        """
        made: list[Turn] = []
        known: list[Message] = []
        asked = [*(exchange.asked_at for exchange in self.exchanges), ended][1:]
        for exchange, next_request in zip(self.exchanges, asked, strict=True):
            shown, places = shown_anew(known, exchange.messages)
            reply = Message(role="assistant", content=exchange.reply)
            known = [*exchange.messages, reply]
            times = replace(exchange.times, tool=max(0.0, next_request - exchange.answered_at))
            made.append(Turn(shown, reply, exchange.sampled, exchange.actions, (Observation(""),), times, places))
        return tuple(made)

    def metrics(self) -> dict[str, float]:
        """As of a session's, and what only many conversations have."""
        sampled = [exchange.sampled for exchange in self.exchanges if exchange.sampled]
        return {
            "sampled_tokens": sum(len(reply.token_ids) for reply in sampled),
            "length_stops": sum(reply.stop == "length" for reply in sampled) / max(len(sampled), 1),
            "cached_share": self._cached_tokens / max(self._prompt_tokens, 1),
            "requests": self.requests,
            "requests_abandoned": self.abandoned,
            "conversations": self._conversations(),
            **{f"asked_{name}": statistics.fmean(values) for name, values in self.requested_sampling.items()},
        }

    def _conversations(self) -> int:
        """How many there are: one begins where a request does not go on from an earlier one and its reply."""
        ended = {(*_line(exchange.messages), ("assistant", exchange.reply)) for exchange in self.exchanges}
        going_on = sum(
            any(_line(exchange.messages[:i]) in ended for i in range(1, len(exchange.messages)))
            for exchange in self.exchanges
        )
        return len(self.exchanges) - going_on

    def end(self) -> None:
        """Ends the episode: replies that are being sampled are cancelled, and no more are sampled."""
        self._over = True
        for work in self._under_way:
            work.stop()

    def recognise(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], dict[int, int], bytes]:
        """The conversation for the template, which of its messages are which sampled replies, and a digest of all of
        it."""
        digest, known = hashlib.blake2b(digest_size=16), dict[int, int]()
        for i, message in enumerate(messages):
            form = form_of(message)
            if message["role"] == "assistant" and (number := self._number(message, form, digest.digest())) is not None:
                known[i] = number
            digest.update(f"{form}\n".encode())  # JSON on one line: no two conversations are the same text
        made: list[Message] = []
        for i, message in enumerate(messages):
            if i in known:
                made.append(Message(role="assistant", content=self.exchanges[known[i]].reply))
            else:
                foreign = {"foreign": True} if message["role"] == "assistant" else {}
                made.append({**message, **foreign})  # type: ignore[typeddict-item]
        return made, known, digest.digest()

    def _number(self, message: Mapping[str, Any], form: str, before: bytes) -> int | None:
        """Which of the sampled replies an assistant's message is."""
        alike, after = self._by_form.get(form, []), self._by_place.get((before, form), [])
        if thought := str(message.get("reasoning_content") or "").strip():  # most clients leave it out
            alike, after = ([n for n in found if self._thoughts.get(n) == thought] for found in (alike, after))
        by_id = {self._by_call.get(call) for call in call_ids(message)}
        named = [number for number in alike if by_id == {number}] if by_id else []
        found = named or after or alike
        # Several replies with different thoughts, all in other conversations: none is recognised.
        same = len({self.exchanges[number].reply for number in found}) == 1
        return found[-1] if found and (same or found is not alike) else None

    async def _sample(
        self,
        token_ids: Sequence[int],
        number: int,
        request: SamplingRequest,
        on_tokens: Sequence[TokenCallback] = (),
    ) -> list[Generation]:
        requested, n, seed = request.requested_sampling, request.n, request.seed
        for name, value in requested.items():
            self.requested_sampling.setdefault(name, []).append(value)
        most = min(self.sampling.max_tokens, request.max_tokens or self.sampling.max_tokens)
        stops = tuple(dict.fromkeys((*self._stop_ids, *request.stop_ids)))
        own = {"max_tokens": most, "stop_ids": stops, **({} if self.training else requested)}
        draws = [replace(self.sampling, **own, seed=self._seed(number, i, seed)) for i in range(n)]
        orders = [f"{self.order}-{number:03d}" + f".{i}" * (n > 1) for i in range(n)]
        more: list[dict[str, Any]] = [{"on_tokens": one} for one in on_tokens] or [{}] * n
        given = zip(draws, orders, more, strict=True)
        drawing = [self.engine.generate(token_ids, s, order=o, **m) for s, o, m in given]
        drawn = await self._all_of(drawing) if n > 1 else [await self._until_over(drawing[0])]
        self._prompt_tokens += len(token_ids) * len(drawn)
        self._cached_tokens += sum(generation.cached_tokens for generation in drawn)
        return drawn

    @property
    def _stop_ids(self) -> tuple[int, ...]:
        return self.sampling.stop_ids or self.tokenizer.stop_ids

    def _sampled(self, generation: Generation) -> Sampled:
        """Where only its client has named the token that ended it, the policy did not end it: it was cut."""
        ids, stop = generation.token_ids, generation.stop
        named = stop == "stop" and ids[-1] not in self._stop_ids
        return Sampled(ids, generation.logprobs, "text" if named else stop, generation.version)

    async def _all_of(self, drawing: Sequence[Coroutine[Any, Any, Generation]]) -> list[Generation]:
        """Several replies side by side: all, or none."""
        under_way = [asyncio.ensure_future(one) for one in drawing]
        try:
            return await self._until_over(asyncio.gather(*under_way))
        except BaseException:
            for one in under_way:
                if not one.cancel() and not one.cancelled() and one.exception() is None:  # it had been given already
                    self.engine.counters.abandoned += len(one.result().token_ids)
            raise

    async def _until_over(self, work: Awaitable[T]) -> T:
        """The engine's reply, unless the episode ends before."""
        with Stoppable(_episode_over) as stoppable, self.noting_its_end():
            self._under_way.add(stoppable)
            try:
                return await work
            except asyncio.CancelledError:
                self.abandoned += 1
                raise
            finally:
                self._under_way.discard(stoppable)

    @contextmanager
    def noting_its_end(self) -> Iterator[None]:
        """Of a reply that was not had: whether the context was full, or else the first failure."""
        try:
            yield
        except ContextFull:
            self.full_after = len(self.exchanges)
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise

    def _check_size(self, request: ChatRequest) -> None:
        """A conversation that cannot fit is refused before it is rendered and encoded, which blocks the event loop:
        each message has a token at least, and a token no more than so many characters."""
        messages, characters = len(request.messages), sum(len(message["content"]) for message in request.messages)
        if messages <= FEW and characters <= FEW * LONGEST_TOKEN:
            return
        context = self.engine.describe().context
        if messages > context or characters > context * LONGEST_TOKEN:
            self.full_after = len(self.exchanges)
            raise ContextFull(
                f"{messages} messages with {characters} characters do not fit a context of {context} tokens"
            )

    def count_request(self) -> int:
        """The number of a request; BadRequest where there may be no more."""
        if self._over:
            raise _episode_over()
        if self.most_requests is not None and self.requests >= self.most_requests:
            self.requests_exceeded = True
            limit = f"An episode may ask {self.most_requests} times, and this one has."
            raise BadRequest(limit, code="max_requests_exceeded")
        self.requests += 1
        return self.requests - 1

    def _seed(self, number: int, i: int, seed: int | None) -> int:
        if seed is not None and not self.training:
            return stable_hash("request", seed, i)
        own = turn_seed(self.seed, number)
        return own if i == 0 and seed is None else stable_hash("request", own, i, seed)

    def take_answer(self, digest: bytes) -> Answer | None:
        """What was made for a request, unless it is known to have come: what is asked again then is another sample.
        That its bytes were written does not say so, for a client that gave up at that moment never saw them."""
        answer = self.answers.pop(digest, None)
        came = answer is not None and not self.delivered.isdisjoint(choice.number for choice in answer.choices)
        return None if came else answer

    def keep_answer(self, digest: bytes, answer: Answer) -> None:
        """Keeps an answer for a client that does not receive it and retries."""
        self.answers[digest] = answer
        if len(self.answers) > KEPT_ANSWERS:
            del self.answers[next(iter(self.answers))]

    def _keep(
        self,
        prompt: Prompt,
        generation: Generation,
        request: ChatRequest,
        messages: Sequence[Message],
        before: bytes,
        asked: float,
    ) -> Choice:
        sampled, stop_text = until_stop(self._sampled(generation), request.stop, self.tokenizer)
        self.engine.counters.abandoned += len(generation.token_ids) - len(sampled.token_ids)
        trained = self.trains(messages, self.opening)
        reply = self.forest.append(prompt, sampled, trained=trained)
        cut = sampled.stop == "length"
        text = reply.text.partition(stop_text)[0] if stop_text else reply.text
        times, noted = _times(generation), sampled if trained else None
        exchange = Exchange(tuple(messages), request.tools, reply.text, (Action("text", text),), noted, times, asked)
        try:
            with self.defects_noted():
                parsed = read_reply(text, tools=request.tools, parser=self.parser, cut=cut, thinking=prompt.thinking)
        except Exception:  # the client gets no reply: numbers of replies and exchanges must agree all the same
            self.exchanges.append(exchange)
            raise
        message = self.note(replace(exchange, actions=parsed.calls or exchange.actions), parsed, before)
        finish = "tool_calls" if parsed.calls else "length" if cut else "stop"
        return Choice(message, finish, reply.token_ids, reply.logprobs, reply.number, stop_text)

    def note(self, exchange: Exchange, parsed: ParsedReply, before: bytes) -> dict[str, Any]:
        """Records a reply, so that it is recognised in later requests; returns it as the client gets it."""
        number = len(self.exchanges)
        message = parsed.message(lambda i: self._call_id(number, i))
        self.exchanges.append(exchange)
        form = form_of(message)
        self._thoughts[number] = parsed.thought
        self._by_form.setdefault(form, []).append(number)
        self._by_place.setdefault((before, form), []).append(number)
        self._by_call |= {call: number for call in call_ids(message)}
        return message

    def _call_id(self, number: int, i: int) -> str:
        """The id of a tool call: unique, and the same when the episode is repeated. Some templates need nine
        characters."""
        text = f"{self.order} {self.seed} {number} {i}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()[:9]


def _line(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in messages)


def _episode_over() -> BadRequest:
    return BadRequest("The episode is over.", code="episode_over", status=410)


def _times(generation: Generation) -> Times:
    return Times(queue=generation.queue_s, model=generation.model_s)
