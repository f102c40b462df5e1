"""Agents that are models: the policy under training, and any model behind an OpenAI-compatible URL."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airloop.chat.native import NativeReplies
from airloop.chat.session import ChatSession
from airloop.engine.base import ContextFull
from airloop.errors import AirError, InfraError
from airloop.types import Branch, Message, Sampled, Times

if TYPE_CHECKING:
    import httpx  # imported where it is used: most runs ask no URL


class ModelAgent(ABC):
    """An agent that can say, after each reply, how the reply came about."""

    sampled: Sampled | None = None  # the last reply's tokens, if they are ours to train on
    times: Times = Times()  # of the last reply
    cut: bool = False  # whether the last reply ended by its length
    thinking: bool = False  # whether it began inside a thought that the prompt had opened

    @abstractmethod
    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message: ...

    def branches(self) -> tuple[Branch, ...]:
        return ()

    def metrics(self) -> Mapping[str, float]:
        return {}


class PolicyAgent(ModelAgent):
    """The policy under training."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        completion = await self.session.complete(messages, tools)
        self.sampled, self.times = completion.sampled, completion.times
        self.cut, self.thinking = completion.cut, completion.thinking
        return completion.message

    def branches(self) -> tuple[Branch, ...]:
        return self.session.branches()

    def metrics(self) -> Mapping[str, float]:
        return self.session.metrics()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes longer than the rest of a request; once is enough."""
    return ssl.create_default_context()


class _Retry(Exception):
    """Worth another try; `after` seconds if the server said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class UrlAgent(ModelAgent):
    """A model behind an OpenAI-compatible URL, for baselines. Prices are per million tokens.

    The episode's conversation is text, as for the policy. A server that reads tool calls out of the text
    gets them back in its own form, and what it returns as `tool_calls` is written as Hermes text.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        price_in: float = 0.0,
        price_out: float = 0.0,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        timeout_s: float = 120.0,
        seed: int | None = None,
        *,
        attempts: int = 5,
        backoff_s: float = 1.0,
    ) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._options: dict[str, Any] = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        if seed is not None:
            self._options["seed"] = seed
        self._headers = _authorisation(api_key_env)
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._price_in, self._price_out = price_in, price_out
        self._replies = NativeReplies()
        self._cuts = self._retries = 0
        self.tokens_in = self.tokens_out = 0

    @property
    def cost(self) -> float:
        return (self.tokens_in * self._price_in + self.tokens_out * self._price_out) / 1e6

    def metrics(self) -> Mapping[str, float]:
        return {
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "cost": self.cost,
            "length_stops": self._cuts / max(len(self._replies), 1),
            "request_retries": self._retries,
        }

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        body = {**self._options, "messages": self._replies.conversation(messages)}
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        started = time.monotonic()
        answer, choice = await self._ask_until_answered(body)
        self.times = Times(model=time.monotonic() - started)
        usage = answer.get("usage") or {}
        self.tokens_in += int(usage.get("prompt_tokens") or 0)
        self.tokens_out += int(usage.get("completion_tokens") or 0)
        self.cut = choice.get("finish_reason") == "length"
        self._cuts += self.cut
        native = choice["message"]
        known = {key: native[key] for key in ("role", "content", "tool_calls") if native.get(key)}
        text = self._replies.hear(native, {"role": "assistant", "content": "", **known})
        return Message(role="assistant", content=text)

    async def _ask_until_answered(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        import httpx

        async with httpx.AsyncClient(timeout=self._timeout_s, headers=self._headers, verify=_tls()) as client:
            for attempt in range(self._attempts):
                try:
                    return await self._ask(client, body)
                except _Retry as error:
                    reason = str(error)
                    wait = self._backoff_s * 2**attempt if error.after is None else error.after
                if attempt + 1 < self._attempts:
                    self._retries += 1
                    await asyncio.sleep(min(wait, self._timeout_s))
        raise InfraError(f"{self._url} did not answer in {self._attempts} attempts; the last: {reason}")

    async def _ask(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        import httpx

        try:
            response = await client.post(self._url, json=body)
        except httpx.TransportError as error:
            raise _Retry(f"{type(error).__name__} {error}".strip()) from error
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            after = response.headers.get("retry-after", "")
            raise _Retry(f"status {response.status_code}", float(after) if after.isdecimal() else None)
        if response.status_code >= 400:
            if "context_length" in response.text or "maximum context length" in response.text:
                raise ContextFull(response.text[:500])
            raise AirError(
                f"{self._url} refused the request with status {response.status_code}: {response.text[:500]}",
                "check the URL, the model's name and the API key",
            )
        try:
            answer = response.json()
            choice = answer["choices"][0]
            choice["message"].get("content")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _Retry(f"an answer that is not a chat completion: {response.text[:200]}") from error
        return answer, choice


def _authorisation(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise AirError(f"The environment variable {api_key_env} holds no API key.", f"export {api_key_env}=…")
    return {"Authorization": f"Bearer {key}"}
