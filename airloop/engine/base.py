"""The contract of an engine. No text, no templates, no tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from airloop.errors import AirError
from airloop.types import StopReason

T = TypeVar("T")
# Called with a reply's tokens as they are sampled, in their order, before the reply is returned.
TokenCallback = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one reply. The seed and the position fix every random draw, whatever else is in the batch."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply: its tokens exactly as they were drawn."""

    token_ids: tuple[int, ...]  # the stop token is included
    logprobs: tuple[float, ...]
    stop: StopReason
    version: int  # of the policy that sampled it
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    queue_s: float = 0.0
    model_s: float = 0.0  # from its start to its last token
    prefill_s: float = 0.0  # of that, to its first token


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold: tokens of one request, requests at once, bytes that it takes. `hottest`: the highest
    temperature that it samples at."""

    context: int
    batch: int
    memory_bytes: int
    detail: dict[str, str] = field(default_factory=dict)
    hottest: float = math.inf


class ContextFull(Exception):
    """The prompt leaves no room for a single new token. Says both lengths."""


class EngineFailed(AirError):
    """The engine cannot go on: nothing is sampled any more. Whoever waits for a reply gets this, at once."""


@dataclass
class Counters:
    """What the engine did since it started; differences between two readings describe a step."""

    steps: int = 0
    sampled: int = 0
    prompt: int = 0  # prompt tokens asked for
    cached: int = 0  # of those, found in the prefix cache
    abandoned: int = 0  # tokens that no reply was given with: nobody waited for its end, or it had ended before them
    prefill_s: float = 0.0  # steps that computed prompts
    decode_s: float = 0.0  # steps that did nothing but decode

    @property
    def phases(self) -> tuple[float, float]:
        return self.prefill_s, self.decode_s


class EngineDowntime:
    """Seconds in which an engine began no reply, whoever asked: it trained, or had no server left. No deadline of an
    episode counts them."""

    def __init__(self) -> None:
        self._before, self._since, self._reasons = 0.0, 0.0, 0

    @property
    def seconds(self) -> float:
        return self._before + (time.monotonic() - self._since if self._reasons else 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Several may count at once: that is the same time."""
        if not self._reasons:
            self._since = time.monotonic()
        self._reasons += 1
        try:
            yield
        finally:
            self._reasons -= 1
            if not self._reasons:
                self._before += time.monotonic() - self._since


class Engine(Protocol):
    """Samples from the policy under training.

        reply = await engine.generate(tokenizer.encode("Hello"), Sampling(max_tokens=32))
        reply.token_ids, reply.logprobs, reply.version

    `counters` only grow. `fallback_reason`: why it runs slower than it could; empty if it does not.
    """

    counters: Counters
    downtime: EngineDowntime  # how long it could serve nobody
    in_place: bool = False  # it samples from the trainer's own weights

    @property
    def version(self) -> int:
        """Of the policy that is served."""
        ...

    @property
    def fallback_reason(self) -> str: ...

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        """One reply. Raises ContextFull when the prompt does not fit. Cancelling the awaiting task frees
        everything at once. `order` names the request for lock-step scheduling: requests of a step are
        admitted in this order, not in order of arrival. `on_tokens` is called with tokens as they are sampled, a few at
        a time."""
        ...

    async def publish(self, version: int) -> None:
        """Serve the current weights as `version`; cached prefixes of other versions are void."""
        ...

    def set_version(self, version: int) -> None:
        """As publish, before anything is sampled: a trained policy is loaded, not trained."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """While weights are trained or looked at: nothing is sampled, and memory that was lent is given back."""
        ...

    def describe(self) -> Limits: ...

    async def start(self) -> None:
        """Of an engine that has servers to start: starts them, before any deadline of an episode runs."""
        return None

    def pinned(self) -> AbstractContextManager[Engine]:
        """For the episodes of a group, once it was started: what it gives samples by the policy that is served now,
        also when newer ones are published meanwhile. With one copy of the weights there is only the newest."""
        return nullcontext(self)

    def answering(self) -> tuple[int, int]:
        """How many of its servers answer, and how many it has: none, if it is not made of servers."""
        return 0, 0

    async def close(self) -> None:
        """Ends all requests that wait for a reply; nothing is sampled any more."""
        ...


def room_after(token_ids: Sequence[int], sampling: Sampling, context: int) -> int:
    """How many tokens a reply may have. ContextFull where that is none."""
    room = context - len(token_ids)
    if room < 1:
        raise ContextFull(f"the prompt has {len(token_ids)} tokens, the context {context}")
    if not token_ids or sampling.max_tokens < 1:
        raise ValueError("generate needs a token to go on from, and may not be asked for none")
    return min(sampling.max_tokens, room)


async def update_served(engine: Engine, update: Callable[[], Awaitable[T]], version: Callable[[], int]) -> T:
    """Changes the weights while others wait for replies, and serves them under the new version. An engine that samples
    from the trainer's own weights (`in_place`) does not go on before: what it sampled in between would have the wrong
    version. Servers have weights of their own, and are told afterwards."""
    async with engine.paused():
        result = await update()
        if engine.in_place:
            await engine.publish(version())
    if not engine.in_place:
        await engine.publish(version())
    return result
