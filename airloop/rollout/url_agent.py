"""Any model behind an OpenAI-compatible URL as an agent: baselines."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airloop.certificates import certificates_for
from airloop.chat.native import NativeReplies
from airloop.engine.base import ContextFull
from airloop.errors import AirError, InfraError
from airloop.models.chat_forms import with_tools_in_system, without_tool_role
from airloop.rollout.agents import ModelAgent
from airloop.text.keys import note_keys
from airloop.types import Message, Times

if TYPE_CHECKING:
    import httpx  # imported where it is used: most runs ask no URL

# How servers say that there are no tools: a router without an endpoint that has them, Ollama, vLLM without its flag,
# and others that do not know the key.
NO_TOOLS = re.compile(
    r"support tool use|not support (tools|tool|function)|tools?( use| calling)? (is|are) not supported"
    r"|enable-auto-tool-choice|(unsupported|unknown|unrecogni[sz]ed|unexpected)[^.]{0,60}\btools\b",
    re.IGNORECASE,
)
SHOWN = 200  # characters of a server's words


@dataclass
class Dialect:
    """What a server has turned out not to understand: learned once, for all episodes with it."""

    length: str = "max_tokens"
    tools: bool = True  # they have a place of their own in a request
    notes: list[str] = field(default_factory=list)

    def learn(self, said: str, body: Mapping[str, Any]) -> bool:
        """Of a refusal: whether asking in another way may help."""
        if self.length in body and self.length == "max_tokens" and "max_completion_tokens" in said:
            self.length = "max_completion_tokens"
            self.notes.append("the endpoint takes max_completion_tokens in place of max_tokens")
            return True
        if "tools" in body and NO_TOOLS.search(said):
            self.tools = False
            self.notes.append(
                "the endpoint has no tools: they are listed in the system message, and calls are expected as "
                f"<tool_call>… text. It said: {said[:SHOWN]}"
            )
            return True
        # Another episode has learned it meanwhile.
        return (self.length not in body) or ("tools" in body and not self.tools)


class _Retry(Exception):
    """Worth another try; `after` seconds if the server said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _AskAnew(Exception):
    """The server takes what was asked in another form."""


class UrlAgent(ModelAgent):
    """A model behind an OpenAI-compatible URL, for baselines. Prices are per million tokens.

    The episode's conversation is text, as for the policy. A server that reads tool calls out of the text
    gets them back in its own form, and what it returns as `tool_calls` is written as Hermes text. One that has no
    tools is told of them in the system message, as local models are whose template has no place for them.
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
        dialect: Dialect | None = None,
    ) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._options: dict[str, Any] = {"model": model, "temperature": temperature}
        self._max_tokens = max_tokens
        self._dialect = dialect or Dialect()
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
        started = time.monotonic()
        while True:
            try:
                answer, choice = await self._ask_until_answered(self._body(messages, tools))
                break
            except _AskAnew:
                continue
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

    def _body(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        body = {**self._options, self._dialect.length: self._max_tokens}
        if tools and not self._dialect.tools:
            spoken = without_tool_role([dict(message) for message in messages])
            return {**body, "messages": with_tools_in_system(spoken, tools)}
        given = {"tools": [dict(tool) for tool in tools]} if tools else {}
        return {**body, "messages": self._replies.conversation(messages), **given}

    async def _ask_until_answered(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        import httpx

        verify = certificates_for(self._url)
        async with httpx.AsyncClient(timeout=self._timeout_s, headers=self._headers, verify=verify) as client:
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
            if self._dialect.learn(response.text, body):
                raise _AskAnew
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
    note_keys(key)
    return {"Authorization": f"Bearer {key}"}
