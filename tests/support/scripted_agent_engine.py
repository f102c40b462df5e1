"""An engine whose replies are a scripted agent's: for tests and benchmarks of everything around the model.

Token ids in, token ids out, as the contract says: each prompt is read back into messages by the tokens that begin and
end a turn in ChatML, the episode's own agent answers them, and the answer is tokenised. So episodes take the whole
real path (templates, transcripts, parsing, sessions, scores) and only the model is missing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airloop.engine.base import ContextFull, Counters, EngineDowntime, Generation, Limits, Sampling
from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.types import Agent, Message, Task

if TYPE_CHECKING:
    from airloop.models.chat import ChatTokenizer

LOGPROB = -0.5  # of every token: no model, no opinion
_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class ScriptedEngine:
    """Replies for the episodes of one `plan`, which are told apart by `order` as the sampler gives it.

    `together`: no first reply comes before so many episodes have asked for theirs, so that as many are open at once.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        envs: Mapping[str, Environment],
        plan: Sequence[Task],
        *,
        agent: str = "oracle",
        context: int = 1 << 20,
        together: int = 0,
    ) -> None:
        self._tokenizer, self._envs, self._plan = tokenizer, envs, plan
        self._agent, self._context, self._together = agent, context, together
        self._starts, self._ends = (_token(tokenizer, word) for word in ("<|im_start|>", "<|im_end|>"))
        self._agents: dict[str, Agent] = {}
        self._all_here = asyncio.Event()
        self.version = 0
        self.counters, self.downtime = Counters(), EngineDowntime()
        self.most_waiting = 0  # first replies that were waited for at once

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, order: str = "") -> Generation:
        if len(token_ids) >= self._context:
            raise ContextFull(f"the prompt has {len(token_ids)} tokens, the context {self._context}")
        episode, _, _ = order.rpartition("-")
        if episode not in self._agents:
            task = self._plan[int(episode.partition("-")[0])]
            self._agents[episode] = self._envs[task.env].scripted(self._agent, task, 0)
            await self._wait_for_all()
        reply = await self._agents[episode].reply(self.read(token_ids), ())
        ids = [*self._tokenizer.encode(reply["content"]), self._ends]
        cut = tuple(ids[: min(sampling.max_tokens, self._context - len(token_ids))])
        return Generation(cut, (LOGPROB,) * len(cut), "stop" if len(cut) == len(ids) else "length", self.version)

    async def _wait_for_all(self) -> None:
        self.most_waiting = (
            max(self.most_waiting, len(self._agents)) if not self._all_here.is_set() else self.most_waiting
        )
        if len(self._agents) >= self._together:
            self._all_here.set()
        await self._all_here.wait()

    def read(self, token_ids: Sequence[int]) -> list[Message]:
        """The messages of a prompt, without the open turn at its end. Tool answers that a template puts into a user's
        message are messages of their own again."""
        messages: list[Message] = []
        turn: list[int] | None = None
        for token in token_ids:
            if token == self._starts:
                turn = []
            elif token == self._ends and turn is not None:
                role, _, content = self._tokenizer.decode(turn).partition("\n")
                answers = _RESPONSE.findall(content) if role == "user" else []
                messages += [Message(role="tool", content=text) for text in answers] or [
                    Message(role=role, content=content)
                ]
                turn = None
            elif turn is not None:
                turn.append(token)
        return messages

    async def publish(self, version: int) -> None:
        self.version = version

    async def start(self) -> None:
        return None

    def describe(self) -> Limits:
        return Limits(self._context, len(self._plan), 0)

    async def close(self) -> None:
        return None


def _token(tokenizer: ChatTokenizer, word: str) -> int:
    ids = tokenizer.encode(word)
    if len(ids) != 1:
        raise AirError(
            f"The scripted engine reads prompts in ChatML, and {tokenizer.name} has no token {word}.",
            "use a model that has it, for instance SmolLM2 or Qwen, or the tokenizer of tiny:llama.",
        )
    return ids[0]
