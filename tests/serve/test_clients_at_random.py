"""Clients of every form ask over sockets, whole and as streams, with odd tools and texts of `stop`, side by side; they
ask again, hang up and rewrite what was said. Every trained row is a request and its response, each reply is noted once,
what became of every sampled token is known, and what is echoed comes back in the tokens it was sampled in."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import random
from typing import Any, NamedTuple

import httpx
import pytest
from support.endpoint_world import Recorded, trained_pairs
from support.merging import merging, spelled
from support.rollout_world import STOP
from test_streams import events_of, joined_chat, joined_messages, joined_responses

from airloop.engine.base import Sampling
from airloop.serve.app import RETRIES, Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.serve.server import serving

XML = "<tool_call>\n<function=look>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>"
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
SAID = [
    "yes",
    "no",
    "",
    "  spaces ",
    "<think>\nhm\n</think>\n\nfour",
    CALL,
    XML,
    f"I look.\n{CALL}",
    "<tool_call>{",
    "é STOP on",
]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"at": {"type": "integer"}}},
    {"properties": {"at": True}},
    {"properties": {"at": {"anyOf": [{"type": "string"}, True]}}},
    {"properties": []},
    {},
]
CHAT = merging("chatml")
CHATS, MESSAGES, RESPONSES, TOKENS = "/chat/completions", "/messages", "/responses", "/inference/v1/generate"


class State(NamedTuple):
    """A conversation in one of the forms; `mark`: of the request that its last reply answers, if that had one."""

    form: str
    messages: list[dict[str, Any]]
    mark: int | None = None


def set_mark(message: dict[str, Any], mark: int) -> None:
    """Ends what it says with the mark."""
    name = "output" if "output" in message else "content"
    if isinstance(message[name], str):
        message[name] += f" #{mark}"
    else:
        message[name][-1]["content"] += f" #{mark}"


class Engine(Recorded):
    """Some replies take longer than others."""

    def __init__(self) -> None:
        super().__init__(tokenizer=CHAT)

    def reply(self, token_ids: Any, sampling: Any) -> list[int]:
        return [*spelled(CHAT, SAID[sampling.seed % len(SAID)], sampling.seed), STOP]

    async def generate(self, token_ids: Any, sampling: Any, order: str = "", on_tokens: Any = None) -> Any:
        await asyncio.sleep(sampling.seed % 3 * 0.001)
        return await super().generate(token_ids, sampling, order, on_tokens)


class RandomClient:
    def __init__(self, http: httpx.AsyncClient, dice: random.Random) -> None:
        self.http, self.dice = http, dice
        self.states: list[State] = [
            State(form, [{"role": "user", "content": "begin"}]) for form in (CHATS, MESSAGES, RESPONSES)
        ]
        self.statuses: set[int] = set()
        self.numbers = itertools.count()
        self.echoes: list[tuple[int, int]] = []  # the marks of a request, and of one that goes on from its reply

    def history(self) -> State:
        form, past, mark = copy.deepcopy(self.dice.choice(self.states[-8:]))
        what = self.dice.choice(["echo"] * 5 + ["drop", "edit", "strip"])
        at = self.dice.randrange(len(past))
        if what == "drop" and len(past) > 2:
            del past[at]
        elif what == "edit" and isinstance(past[at].get("content"), str):
            past[at]["content"] += "!"
        elif what == "strip":
            past[at].pop("reasoning_content", None)
        if what != "echo":
            return State(form, past)
        own = next(self.numbers)
        set_mark(past[-1], own)
        if mark is not None:
            self.echoes.append((mark, own))
        return State(form, past, own)

    def body(self, form: str, past: list[dict[str, Any]]) -> dict[str, Any]:
        dice, schema = self.dice, self.dice.choice(SCHEMAS)
        tools = (
            [{"name": "look", "input_schema": schema}]
            if form == MESSAGES
            else [{"type": "function", "name": "look", "parameters": schema}]
        )
        if form == CHATS:
            tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
        body: dict[str, Any] = {
            "model": "m",
            "stream": dice.random() < 0.5,
            "input" if form == RESPONSES else "messages": past,
        }
        if dice.random() < 0.7:
            body["tools"] = tools
        if form == MESSAGES:
            body["max_tokens"] = dice.choice([3, 100])
        if form == CHATS:
            body["n"] = dice.choice([1, 1, 2])
        if form != RESPONSES and dice.random() < 0.3:
            body["stop" if form == CHATS else "stop_sequences"] = dice.sample(["STOP", "e", "look", "<|im_end|>"], 2)
        return body

    async def ask(self) -> None:
        if self.dice.random() < 0.1:
            ids = CHAT.encode(self.dice.choice(["a", "b", "<|im_start|>"]))
            said = (await self.post(TOKENS, {"token_ids": ids, "sampling_params": {"max_tokens": 5}})).json()
            assert len(said["choices"][0]["token_ids"]) <= 5
            return
        form, past, mark = self.history()
        body = self.body(form, past)
        if self.dice.random() < 0.15:  # hangs up, and perhaps asks again
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.post(form, body), self.dice.choice([0.001, 0.004]))
            if self.dice.random() < 0.5:
                return
        answer = await self.post(form, body, again=self.dice.random() < 0.2)
        assert answer.status_code in (200, 400), answer.text  # 400: a conversation that the template cannot have
        if answer.status_code == 200:
            said = streamed(form, answer.text, body.get("n", 1)) if body["stream"] else replies(form, answer.json())
            for one in said:
                kept = [item for item in one if item.get("content") != []]
                self.states.append(State(form, self.goes_on(past, kept), mark if kept else None))

    def goes_on(self, past: list[dict[str, Any]], said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        calls = [call for one in said for call in one.get("tool_calls") or []]
        blocks = [block for one in said if isinstance(one.get("content"), list) for block in one["content"]]
        used = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        results: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": call["id"], "content": "here"} for call in calls
        ]
        results += [
            {"type": "function_call_output", "call_id": one["call_id"], "output": "here"}
            for one in said
            if one.get("type") == "function_call"
        ]
        if used:
            results = [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": id, "content": "here"} for id in used],
                }
            ]
        return [*past, *said, *(results or [{"role": "user", "content": self.dice.choice(["go on", "é<|im_end|>"])}])]

    async def post(self, path: str, body: dict[str, Any], again: bool = False) -> httpx.Response:
        front = "" if path == TOKENS else "/v1"
        answer = await self.http.post(front + path, content=json.dumps(body), headers={RETRIES: "1"} if again else {})
        self.statuses.add(answer.status_code)
        return answer

    async def live(self, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*(self.ask() for _ in range(self.dice.choice([1, 1, 2, 3]))))


def replies(form: str, said: dict[str, Any]) -> list[list[dict[str, Any]]]:
    if form == CHATS:
        return [[choice["message"]] for choice in said["choices"]]
    return [[{"role": "assistant", "content": said["content"]}]] if form == MESSAGES else [said["output"]]


def streamed(form: str, text: str, n: int) -> list[list[dict[str, Any]]]:
    events = events_of(text)
    if form == MESSAGES:
        return [[{"role": "assistant", "content": joined_messages(events)["content"]}]]
    if form == RESPONSES:
        return [joined_responses(events)]
    assert not any("error" in event for event in events), events
    each = [[{**e, "choices": [c for c in e["choices"] if c["index"] == i]} for e in events] for i in range(n)]
    made = [joined_chat(of_one) for of_one in each]
    return [[{name: value for name, value in message.items() if name != "finish"}] for message in made]


def check_echoes(episode: ServedEpisode, echoes: list[tuple[int, int]]) -> int:
    """Each has the tokens of the reply that it echoes, or of its twin, and with the same tools all before them; how
    many did."""
    made: dict[str, list[tuple[Any, tuple[int, ...], tuple[int, ...]]]] = {}  # by mark
    # Of other texts in one form, as where one was cut at a space, the latest is meant; calls are told by their ids.
    forms = [n for form, n in episode._by_form.items() if not json.loads(form)[1]]
    alike = [{episode.exchanges[number].reply for number in numbers} for numbers in forms]
    ambiguous = set().union(*(texts for texts in alike if len(texts) > 1))
    for exchange, reply in zip(episode.exchanges, episode.forest.replies, strict=True):
        if any(message["role"] == "assistant" and message["content"] in ambiguous for message in exchange.messages):
            continue
        sent = tuple(episode.forest._lines[reply.line].tokens[: reply.start])
        mark = exchange.messages[-1]["content"].rpartition("#")[2]
        made.setdefault(mark, []).append((exchange.tools, sent, reply.token_ids))
    pairs = [(made.get(f"{one}"), made.get(f"{other}", ())) for one, other in echoes]
    found = [(earlier, later) for earlier, after in pairs if earlier for later in after]
    for earlier, (tools, asked, _) in found:
        assert any(
            asked[: len(sent) + len(came)] == sent + came if before == tools else _contains(asked, came)
            for before, sent, came in earlier
        ), "an echoed reply was spelled anew"
    return len(found)


def _contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def check(seed: int, rounds: int) -> int:
    """How many requests were made."""
    engine, endpoint, dice = Engine(), Endpoint("tiny"), random.Random(seed)
    episode = ServedEpisode(engine, CHAT, Sampling(max_tokens=120), seed=seed, order="0")
    key = endpoint.open("one", episode)

    async def work() -> int:
        async with serving(endpoint.app()) as url:
            known: dict[str, Any] = {"headers": {"Authorization": f"Bearer {key}"}, "trust_env": False, "timeout": 60}
            async with httpx.AsyncClient(base_url=f"{url}/e/one", **known) as http:
                client = RandomClient(http, dice)
                await client.live(rounds)
                assert 200 in client.statuses
                return check_echoes(episode, client.echoes)

    assert asyncio.run(work()), "nothing was echoed"
    assert episode.failure is None and not episode._under_way
    assert len(episode.exchanges) == len(episode.forest.replies)
    assert [exchange.reply for exchange in episode.exchanges] == [reply.text for reply in episode.forest.replies]
    trained, left = trained_pairs(episode), list(engine.pairs)
    assert len(trained) == sum(bool(reply.token_ids) for reply in episode.forest.replies)
    for sent, came in trained:
        found = [pair for pair in left if pair[0] == sent and pair[1][: len(came)] == came]
        assert found, "nobody sampled this"
        left.remove(min(found, key=lambda pair: len(pair[1])))
    kept, drawn = (sum(len(came) for _, came in pairs) for pairs in (trained, engine.pairs))
    assert drawn == kept + engine.counters.abandoned, "of every token it is known what became of it"
    return episode.requests


@pytest.mark.parametrize("seed", range(2))
def test_what_is_trained_was_sent_and_came_back_over_sockets(seed: int) -> None:
    assert check(seed, 20) >= 20


@pytest.mark.soak
def test_ten_thousand_requests_over_sockets() -> None:
    made = seed = 0
    while made < 10_000:
        made += check(seed, 40)
        seed += 1
