"""An endpoint over an engine that keeps what was sent and what came back, and clients of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
from support.rollout_world import ScriptedEngine, chat_tokenizer

from airloop.engine.base import Sampling
from airloop.models.chat import ChatTokenizer
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.types import Trajectory

CHAT = chat_tokenizer("chatml")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Recorded(ScriptedEngine):
    """Keeps what was sent and what came back."""

    def __init__(
        self,
        speak: Callable[[str, int], str] = lambda prompt, seed: f"yes {seed % 97}",
        tokenizer: ChatTokenizer = CHAT,
        **more: Any,
    ) -> None:
        super().__init__(tokenizer, speak, **more)
        self.pairs: list[tuple[list[int], list[int]]] = []

    async def generate(self, token_ids: Any, sampling: Any, order: str = "", on_tokens: Any = None) -> Any:
        sent = list(token_ids)
        found = await super().generate(token_ids, sampling, order, on_tokens)
        self.pairs.append((sent, list(found.token_ids)))
        return found


def episode_of(engine: Any, **more: Any) -> ServedEpisode:
    return ServedEpisode(engine, CHAT, **{"sampling": Sampling(max_tokens=200), "seed": 5, "order": "0-0", **more})


class Client:
    def __init__(self, endpoint: Endpoint, id: str = "one", key: str | None = None) -> None:
        self.front = f"/e/{id}" if id else ""
        key = endpoint.key(id) if key is None else key
        transport = httpx.ASGITransport(app=endpoint.app())
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(transport=transport, base_url="http://policy", headers=headers)

    async def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(self.front + path, content=content, headers=headers)

    async def ask(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self.post({"model": "m", "messages": list(messages), **more})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def say(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        return (await self.ask(*messages, **more))["choices"][0]["message"]  # type: ignore[no-any-return]


def play(work: Callable[[Client], Any], engine: Any = None, **more: Any) -> ServedEpisode:
    endpoint = Endpoint("tiny")
    episode = episode_of(engine or Recorded(), **more)
    endpoint.open("one", episode)
    asyncio.run(work(Client(endpoint)))
    return episode


def trained_pairs(episode: ServedEpisode) -> list[tuple[list[int], list[int]]]:
    """Of each trained reply: the tokens before it and its own, in the order of replies."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for branch in episode.branches():
        for turn in dict.fromkeys(t for t, train in zip(branch.turns, branch.train, strict=True) if train):
            places = [i for i, (t, own) in enumerate(zip(branch.turns, branch.train, strict=True)) if own and t == turn]
            assert turn not in found
            found[turn] = (list(branch.tokens[: places[0]]), [branch.tokens[i] for i in places])
    return [found[turn] for turn in sorted(found)]


def trained_is_sampled(engine: Recorded, *played: Trajectory) -> None:
    """Every trained row is a request and its response, and each response is trained once."""
    assert trained_rows(*played) == sorted(engine.pairs)


def trained_rows(*played: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Of each trained reply: the tokens before it and its own."""
    found = []
    for branch in (branch for trajectory in played for branch in trajectory.branches):
        for i, on in enumerate(branch.train):
            if on and not branch.train[i - 1]:
                end = next((j for j in range(i, len(branch.train)) if not branch.train[j]), len(branch.train))
                found.append((list(branch.tokens[:i]), list(branch.tokens[i:end])))
    return sorted(found)
