"""Answers as they are sent: whole, or while they are being made, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airloop.serve.answer import Answer
from airloop.serve.chat_form import BadRequest
from airloop.serve.unfolding import Live
from airloop.serve.waiting import Listening, give_up

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Form(ABC):
    """An answer as a kind of client reads it, whole or as events."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[str, str]] = {}

    @abstractmethod
    def whole(self, answer: Answer) -> Mapping[str, Any]: ...

    @abstractmethod
    def begin(self, prompt_tokens: int) -> Iterator[str]:
        """Before anything is said."""

    @abstractmethod
    def piece(self, i: int, thought: str, content: str) -> Iterator[str]:
        """More of a reply."""

    @abstractmethod
    def end(self, answer: Answer) -> Iterator[str]:
        """What was not said yet, and how it ended."""

    @abstractmethod
    def fail(self, error: BadRequest) -> Iterator[str]:
        """In the middle of an answer."""

    def say(self, i: int, thought: str, content: str) -> None:
        before = self._said.get(i, ("", ""))
        self._said[i] = before[0] + thought, before[1] + content

    def unsaid(self, i: int, message: Mapping[str, Any]) -> tuple[str, str]:
        """Of a reply that is whole, the rest of its thought and of its content."""
        said, whole = self._said.get(i, ("", "")), (message.get("reasoning_content") or "", message["content"] or "")
        if not (whole[0].startswith(said[0]) and whole[1].startswith(said[1])):
            raise AssertionError("a reply is another one than was told of it")
        return whole[0][len(said[0]) :], whole[1][len(said[1]) :]


class WholeAnswer:
    """The response: JSON, as Starlette would write it, without making a writer and headers anew for each."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._body = _json(said).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(self._body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class EventStream:
    """The response: events as pieces come. `work` makes the answer, and is given up if the client hangs up;
    `refusal` says what went wrong with it; `keep` is given the answer before its end is sent."""

    def __init__(
        self,
        form: Form,
        live: Live,
        work: asyncio.Future[Answer],
        refusal: Callable[[Exception], BadRequest],
        keep: Callable[[Answer], None],
    ) -> None:
        self._form, self._live, self._work, self._refusal, self._keep = form, live, work, refusal, keep

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def tell(events: Iterator[str], more: bool = True) -> None:
            await send({"type": "http.response.body", "body": "".join(events).encode(), "more_body": more})

        try:
            async with Listening(scope, receive, self._live.news.set) as listening:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await tell(self._form.begin(self._live.prompt_tokens))
                while not self._work.done() and not listening.gone:
                    await self._live.news.wait()
                    if pieces := self._live.take():
                        await tell(event for piece in pieces for event in self._form.piece(*piece))
                if self._work.done():
                    await tell(self._last(), more=False)
        finally:
            await give_up(self._work)

    def _last(self) -> Iterator[str]:
        try:
            answer = self._work.result()
            self._keep(answer)
            return iter(list(self._form.end(answer)))
        except Exception as error:
            return self._form.fail(self._refusal(error))


def event(said: Mapping[str, Any], name: str = "") -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(said)}\n\n"  # in ASCII: some clients end lines where Unicode does
