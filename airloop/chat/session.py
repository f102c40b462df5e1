"""One conversation with the policy: messages in, a sampled reply out, and every token kept for training.

Episodes speak to it. Nothing here knows of tasks, turns of an environment or rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airloop.chat.forest import Strategy, Tokenizer
from airloop.chat.transcript import Transcript
from airloop.engine.base import Engine, Sampling
from airloop.seeds import turn_seed
from airloop.types import Branch, Message, Sampled, Times


@dataclass(frozen=True)
class Completion:
    """A reply, and how it came about."""

    message: Message
    sampled: Sampled
    times: Times
    thinking: bool  # whether it began inside a thought that the prompt had opened

    @property
    def cut(self) -> bool:
        """Whether it ended by its length."""
        return self.sampled.stop == "length"


class ChatSession:
    """A transcript and an engine. `order` names the conversation for lock-step.

        session = ChatSession(engine, tokenizer, Sampling(max_tokens=200), seed=1)
        completion = await session.complete([{"role": "user", "content": "1+1="}])

    complete() raises ContextFull where the conversation leaves no room for a reply.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        seed: int,
        order: str = "",
        strategy: Strategy = "interleaved",
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._sampling = replace(sampling, stop_ids=sampling.stop_ids or tokenizer.stop_ids)
        self._seed = seed
        self._order = order
        self._strategy = strategy
        self._turn = 0
        self._prompt_tokens = self._cached_tokens = self._sampled_tokens = self._cuts = 0
        self.transcript: Transcript | None = None

    async def complete(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Completion:
        """The reply to a conversation. `tools` are those of the first call."""
        if self.transcript is None:
            self.transcript = Transcript(self._tokenizer, tools, self._strategy)
        self.transcript.show(messages)
        prompt = self.transcript.prompt()
        sampling = replace(self._sampling, seed=turn_seed(self._seed, self._turn))
        generation = await self._engine.generate(prompt, sampling, order=f"{self._order}-{self._turn:03d}")
        sampled = Sampled(generation.token_ids, generation.logprobs, generation.stop, generation.version)
        times = Times(queue=generation.queue_s, model=generation.model_s)
        thinking = self.transcript.thinking
        completion = Completion(self.transcript.append_sampled(sampled), sampled, times, thinking)
        self._turn += 1
        self._prompt_tokens += len(prompt)
        self._cached_tokens += generation.cached_tokens
        self._sampled_tokens += len(generation.token_ids)
        self._cuts += completion.cut
        return completion

    def branches(self) -> tuple[Branch, ...]:
        return self.transcript.branches() if self.transcript else ()

    def metrics(self) -> Mapping[str, float]:
        return {
            "sampled_tokens": self._sampled_tokens,
            "length_stops": self._cuts / max(self._turn, 1),
            "cached_share": self._cached_tokens / max(self._prompt_tokens, 1),
        }
