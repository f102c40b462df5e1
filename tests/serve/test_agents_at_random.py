"""Agents that echo, drop, reorder, summarise and edit what was said, ask side by side and hang up: every trained row is
a request and its reply, token for token; nothing is lost and nothing is trained twice; and a reply that is echoed is
asked about in the tokens it was sampled in, however it was spelled."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.merging import merging, spelled
from support.rollout_world import STOP, TEMPLATES, ScriptedEngine

from airloop.engine.base import Sampling
from airloop.serve.chat_form import BadRequest, call_ids, form_of, read_request
from airloop.serve.episode import ServedEpisode

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": %d}}\n</tool_call>'
SAID = ["yes", "no", "", "  spaces ", "<think>\nhm\n</think>\n\nfour", CALL, f"I look.\n{CALL}\n{CALL}", "<tool_call>{"]
CHATS = (None, *TEMPLATES)
REWRITING = ("drops thinking", "forgets")  # templates that change what was said before
Pair = tuple[tuple[int, ...], tuple[int, ...]]  # tokens that were sent, and those that came back
asked: ContextVar[list[tuple[int, ...]]] = ContextVar("asked")  # what the engine was sent for one request


class Recorded(ScriptedEngine):
    """Keeps what was sent and what came back, as it does; some replies take longer than others."""

    def __init__(self, chat: Any) -> None:
        super().__init__(chat, self.say)
        self.pairs: Counter[Pair] = Counter()

    @staticmethod
    def say(prompt: str, seed: int) -> str:
        text = SAID[seed % len(SAID)]
        return text.replace("%d", str(seed % 3))

    def reply(self, token_ids: Any, sampling: Sampling) -> list[int]:
        return [*spelled(self.tokenizer, self.say("", sampling.seed), sampling.seed), STOP]

    async def generate(self, token_ids: Any, sampling: Sampling, order: str = "") -> Any:
        sent = tuple(token_ids)
        asked.get().append(sent)
        await asyncio.sleep(sampling.seed % 3 * 0.001)
        found = await super().generate(token_ids, sampling, order)
        self.pairs[sent, found.token_ids] += 1
        return found


@dataclass(frozen=True)
class State:
    """A conversation up to a reply: as the agent has it, and in tokens."""

    messages: list[dict[str, Any]]
    tools: bool = False
    tokens: Pair | None = None


class Agent:
    """Does one thing after the other, each by chance."""

    def __init__(self, episode: ServedEpisode, dice: random.Random, rewritten: bool) -> None:
        self.episode, self.dice, self.rewritten = episode, dice, rewritten
        self.states = [State([{"role": "user", "content": "begin"}])]
        self.gone = self.refused = self.echoed = 0

    def history(self) -> tuple[list[dict[str, Any]], State | None]:
        """What is sent, and what of it is an unchanged echo."""
        state = self.dice.choice(self.states[-6:])
        past = json.loads(json.dumps(state.messages))
        what = self.dice.choice(["echo"] * 6 + ["drop", "swap", "summarise", "edit", "strip thoughts", "new ids"])
        at = self.dice.randrange(len(past))
        if what == "drop" and len(past) > 1:
            del past[at]
        elif what == "swap" and len(past) > 2:
            past[at], past[-1] = past[-1], past[at]
        elif what == "summarise" and len(past) > 3:
            past[1:-1] = [{"role": "user", "content": "(what was said)"}]
        elif what == "edit":
            past[at]["content"] = f"{past[at].get('content') or ''}!"
        for message in past:
            if what == "strip thoughts":
                message.pop("reasoning_content", None)
            for call in message.get("tool_calls", []) if what == "new ids" else []:
                call["id"] = f"call_{self.dice.random()}"
        return [*past, *self.answer(past[-1])], state if what == "echo" and state.tokens else None

    def answer(self, last: dict[str, Any]) -> list[dict[str, Any]]:
        if last["role"] != "assistant":
            return []
        calls = last.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": c.get("id", ""), "content": str(i)} for i, c in enumerate(calls)]
        return results or [{"role": "user", "content": self.dice.choice(["go on", "and?", "é<|im_end|>"])}]

    async def ask(self) -> None:
        messages, echo = self.history()
        body: dict[str, Any] = {"messages": messages, "n": self.dice.choice([1, 1, 1, 2])}
        if self.dice.random() < 0.7:
            body["tools"] = [TOOL]
        if self.dice.random() < 0.2:
            body["stop"] = self.dice.choice(["e", "look", "never"])
        asked.set(sent := [])
        work = asyncio.ensure_future(self.episode.chat(read_request(body)))
        if self.dice.random() < 0.15:  # hangs up
            await asyncio.sleep(0.001)
            work.cancel()
        try:
            answer = await work
        except asyncio.CancelledError:
            self.gone += 1
            return
        except BadRequest:
            self.refused += 1
            return
        comparable = not self.rewritten and not any(map(self.is_ambiguous, messages))
        if echo and comparable and echo.tools == ("tools" in body):
            assert self.is_continued(echo, sent[0]), "an echoed reply was spelled anew"
            self.echoed += 1
        for choice in answer.choices:
            self.states.append(State([*messages, choice.message], "tools" in body, (sent[0], choice.token_ids)))

    def is_ambiguous(self, message: dict[str, Any]) -> bool:
        """Whether several replies of other texts are told to the agent in this form (one was cut behind its call, say),
        and no id of a call says which is meant."""
        if message["role"] != "assistant" or any(id in self.episode._by_call for id in call_ids(message)):
            return False
        alike = self.episode._by_form.get(form_of(message), [])
        return len({self.episode.exchanges[number].reply for number in alike}) > 1

    def is_continued(self, echo: State, prompt: tuple[int, ...]) -> bool:
        """Whether it begins with the tokens of the echoed reply and those before it, or of one that says the same in
        the same place."""
        assert echo.tokens is not None
        said = [self.episode.tokenizer.decode(ids) for ids in echo.tokens]
        return any(
            prompt[: reply.end] == (*sent, *reply.token_ids)
            and [self.episode.tokenizer.decode(ids) for ids in (sent, reply.token_ids)] == said
            for reply in self.episode.forest.replies
            if prompt[reply.start : reply.end] == reply.token_ids and (sent := _sent(self.episode, reply))
        )

    async def live(self, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*(self.ask() for _ in range(self.dice.choice([1, 1, 2, 3]))))


def trained_pairs(episode: ServedEpisode) -> Counter[Pair]:
    found: Counter[Pair] = Counter()
    seen: set[int] = set()
    for branch in episode.branches():
        for turn in dict.fromkeys(t for t, train in zip(branch.turns, branch.train, strict=True) if train):
            places = [i for i, (t, own) in enumerate(zip(branch.turns, branch.train, strict=True)) if own and t == turn]
            assert turn not in seen and places == list(range(places[0], places[-1] + 1))
            seen.add(turn)
            found[branch.tokens[: places[0]], tuple(branch.tokens[i] for i in places)] += 1
    return found


def check(name: str | None, seed: int, rounds: int) -> int:
    """How many requests were made."""
    chat = merging(name)
    engine = Recorded(chat)
    episode = ServedEpisode(engine, chat, Sampling(max_tokens=120), seed=seed, order="0")
    agent = Agent(episode, random.Random(seed), name in REWRITING)
    asyncio.run(agent.live(rounds))
    assert agent.echoed or name in REWRITING or rounds < 40
    trained = trained_pairs(episode)
    # What was sampled and delivered is trained; of those who hung up nothing is. `stop` cuts what came back.
    delivered = Counter((tuple(_sent(episode, r)), r.token_ids) for r in episode.forest.replies if r.token_ids)
    assert trained == delivered
    whole = Counter({pair: n for pair, n in trained.items() if pair in engine.pairs})
    cut = trained - whole
    assert not whole - engine.pairs
    for sent, came in cut:
        assert any(s == sent and back[: len(came)] == came for s, back in engine.pairs), "nobody sampled this"
    return episode.requests


def _sent(episode: ServedEpisode, reply: Any) -> list[int]:
    return episode.forest._lines[reply.line].tokens[: reply.start]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([None, *TEMPLATES]), seed=st.integers(0, 1 << 30))
def test_what_is_trained_is_what_was_sent_and_came_back(name: str | None, seed: int) -> None:
    check(name, seed, 8)


@pytest.mark.soak
def test_ten_thousand_requests() -> None:
    made = seed = 0
    while made < 10_000:
        made += check(CHATS[seed % len(CHATS)], seed, 40)
        seed += 1
