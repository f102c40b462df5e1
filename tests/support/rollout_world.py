"""What the rollout tests share: real templates on a real tokenizer, an engine that obeys the contract, and
an environment that can be made to fail in every way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from airloop.engine.base import ContextFull, Counters, EngineDowntime, Generation, Limits, Sampling, TokenCallback
from airloop.envs.base import EnvArgs, Environment, Opening, Session
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.types import Action, Agent, Message, Observation, Score, Task

STOP = 257  # <|im_end|> of the tiny tokenizer

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + BODY + '<|im_end|>SEP' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_DROP_THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": _CHATML.replace("BODY", "m.content").replace("SEP", "\\n"),
    "trims": _CHATML.replace("BODY", "m.content | trim").replace("SEP", "\\n"),
    "no separator": _CHATML.replace("BODY", "m.content").replace("SEP", ""),
    "drops thinking": _DROP_THINKING,
    # Like agents that shorten what they have seen long ago.
    "forgets": _CHATML.replace(
        "BODY", "('…' if m.role == 'user' and not loop.last and loop.index0 > 1 else m.content)"
    ).replace("SEP", "\\n"),
    # Like Mistral's: a space that the generation prompt does not have.
    "adds a space": "{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + '<|im_end|>' }}"
    "{% else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}{% endfor %}",
}


def chat_tokenizer(template: str | None = None) -> ChatTokenizer:
    """The tiny byte-level tokenizer with its own ChatML, or with one of TEMPLATES."""
    hf = tiny_tokenizer()
    if template is not None:
        hf.chat_template = TEMPLATES[template]
    return ChatTokenizer(hf, name=template or "tiny")


class ScriptedEngine:
    """Replies are a function of the prompt's text and the seed; who listens hears up to `burst` tokens at a time. In
    lock-step it steps only when every tracked episode waits, and notes who took part."""

    burst = 3

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        speak: Callable[[str, int], str] = lambda prompt, seed: "```\nsubmit\n```",
        *,
        context: int = 100_000,
        lockstep: bool = False,
    ) -> None:
        self.tokenizer, self.speak, self.context, self.lockstep = tokenizer, speak, context, lockstep
        self.version = 0
        self.counters, self.downtime = Counters(), EngineDowntime()
        self.waiting: dict[str, asyncio.Event] = {}
        self.steps: list[list[str]] = []
        self.orders: list[str] = []
        self.tracked = self.most = self.live = 0

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        if len(token_ids) >= self.context:
            raise ContextFull(f"the prompt has {len(token_ids)} tokens, the context {self.context}")
        self.orders.append(order)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await (self._wait_for_all(order) if self.lockstep else asyncio.sleep(0.001))
        finally:
            self.live -= 1
        ids = self.reply(token_ids, sampling)
        ids = ids[: next((i + 1 for i, token in enumerate(ids) if token in sampling.stop_ids), len(ids))]
        cut = ids[: sampling.max_tokens]
        dice = random.Random(sampling.seed)
        told, bursts = 0, random.Random(f"bursts {sampling.seed}")
        while on_tokens is not None and told < len(cut):
            burst = bursts.randint(1, self.burst)
            on_tokens(cut[told : told + burst])
            told += burst
            await asyncio.sleep(0)
        logprobs = tuple(-dice.random() for _ in cut)
        return Generation(tuple(cut), logprobs, "stop" if cut == ids else "length", self.version, 0, 0.1, 0.2)

    def reply(self, token_ids: Sequence[int], sampling: Sampling) -> list[int]:
        text = self.speak(self.tokenizer.decode(token_ids), sampling.seed)
        return [*self.tokenizer.encode(text), STOP]

    async def _wait_for_all(self, order: str) -> None:
        event = self.waiting[order] = asyncio.Event()
        self._step_if_ready()
        await event.wait()

    def _step_if_ready(self) -> None:
        if self.waiting and len(self.waiting) >= self.tracked:
            self.steps.append(sorted(self.waiting))
            for event in self.waiting.values():
                event.set()
            self.waiting.clear()

    @contextmanager
    def track(self) -> Iterator[None]:
        self.tracked += 1
        try:
            yield
        finally:
            self.tracked -= 1
            self._step_if_ready()

    async def publish(self, version: int) -> None:
        self.version = version

    async def start(self) -> None:
        return None

    def pinned(self) -> AbstractContextManager[Any]:
        return nullcontext(self)

    def describe(self) -> Limits:
        return Limits(self.context, 64, 0)

    async def close(self) -> None:
        return None


Hook = Callable[["StubSession"], Any]


class StubSession(Session):
    def __init__(self, env: StubEnv, task: Task, seed: int) -> None:
        self.env, self.task, self.seed = env, task, seed
        self.acted: list[Action] = []
        self.finishes = 0
        self.closed = False

    async def _hook(self, name: str) -> Any:
        hook = self.env.hooks.get(name)
        if hook is None:
            return None
        result = hook(self)
        return await result if asyncio.iscoroutine(result) else result

    async def __aenter__(self) -> StubSession:
        self.env.sessions.append(self)
        await self._hook("enter")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True
        await self._hook("exit")

    async def begin(self) -> Opening:
        await self._hook("begin")
        first = (
            Message(role="system", content="You work."),
            Message(role="user", content=f"Task {self.task.id} {self.seed}"),
        )
        return Opening(first)

    async def act(self, action: Action) -> Observation:
        self.acted.append(action)
        answer = await self._hook("act")
        if isinstance(answer, Observation):
            return answer
        done = "submit" in action.text or action.name == "submit"
        return Observation(f"you did: {action.text or action.name}", rewards={"step": 0.5}, done=done)

    async def finish(self) -> Score:
        self.finishes += 1
        answer = await self._hook("finish")
        return answer if isinstance(answer, Score) else Score({"solved": float(self.seed % 2)}, {"depth": 1.0})


class StubEnv(Environment):
    name = "stub"
    action_format = "command"

    def __init__(self, tasks: int = 4, max_turns: int = 5, **hooks: Hook) -> None:
        super().__init__(EnvArgs())
        self.reward_weights = {"solved": 1.0, "step": 0.1}
        self.hooks = hooks
        self.sessions: list[StubSession] = []
        self._turns = max_turns
        self._tasks = [Task("stub", f"task {i}", "train", {"i": i}) for i in range(tasks)]

    @property
    def max_turns(self) -> int:
        return self._turns

    def tasks(self, split: str) -> list[Task]:
        return self._tasks if split == "train" else []

    def open(self, task: Task, seed: int) -> StubSession:
        return StubSession(self, task, seed)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        raise NotImplementedError


class ToolEnv(StubEnv):
    action_format = "tools"


class Says:
    """An agent that says the given replies, then the last one for ever."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.heard: list[list[Message]] = []

    async def reply(self, messages: Sequence[Message], tools: Sequence[Any]) -> Message:
        self.heard.append(list(messages))
        text = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return Message(role="assistant", content=text)


def command(text: str) -> str:
    return f"I will.\n```bash\n{text}\n```"
