"""Answers as they are sent: whole, or while they are being made, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airloop.serve.answer import Answer
from airloop.serve.cancellation import DisconnectListener, cancel_and_wait
from airloop.serve.chat_form import BadRequest
from airloop.serve.stable_prefix import StreamListener

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Form(ABC):
    """An answer as a kind of client reads it, whole or as events."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[str, str]] = {}

    @abstractmethod
    def whole(self, answer: Answer) -> Mapping[str, Any]: ...

    @abstractmethod
    def begin(self, prompt_tokens: int) -> Iterator[str]:
        """The events before any text."""

    @abstractmethod
    def piece(self, i: int, thought: str, content: str) -> Iterator[str]:
        """Events for more text of a reply."""

    @abstractmethod
    def end(self, answer: Answer) -> Iterator[str]:
        """Events for what was not sent yet, and for how it ended."""

    @abstractmethod
    def fail(self, error: BadRequest) -> Iterator[str]:
        """Events for an error in the middle of an answer."""

    def record_sent(self, i: int, thought: str, content: str) -> None:
        before = self._sent.get(i, ("", ""))
        self._sent[i] = before[0] + thought, before[1] + content

    def unsent(self, i: int, message: Mapping[str, Any]) -> tuple[str, str]:
        """What was not sent yet of a whole reply: of its thought and of its content."""
        sent, whole = self._sent.get(i, ("", "")), (message.get("reasoning_content") or "", message["content"] or "")
        if not (whole[0].startswith(sent[0]) and whole[1].startswith(sent[1])):
            raise AssertionError("a reply differs from the pieces of it that were sent")
        return whole[0][len(sent[0]) :], whole[1][len(sent[1]) :]


class WholeAnswer:
    """The response: JSON, as Starlette would write it, without making a writer and headers anew for each."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._body = _json(answer).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(self._body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class EventStream:
    """The response: events as pieces come. `work` makes the answer, and is cancelled if the client disconnects;
    `refusal` says what went wrong with it; `keep` is given the answer before its end is sent."""

    def __init__(
        self,
        form: Form,
        listener: StreamListener,
        work: asyncio.Future[Answer],
        refusal: Callable[[Exception], BadRequest],
        keep: Callable[[Answer], None],
    ) -> None:
        self._form, self._listener, self._work, self._refusal, self._keep = form, listener, work, refusal, keep

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_events(events: Iterator[str], more: bool = True) -> None:
            await send({"type": "http.response.body", "body": "".join(events).encode(), "more_body": more})

        try:
            async with DisconnectListener(scope, receive, self._listener.changed.set) as listening:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await send_events(self._form.begin(self._listener.prompt_tokens))
                while not self._work.done() and not listening.gone:
                    await self._listener.changed.wait()
                    if pieces := self._listener.take_pieces():
                        await send_events(event for piece in pieces for event in self._form.piece(*piece))
                if self._work.done():
                    await send_events(self._last(), more=False)
        finally:
            await cancel_and_wait(self._work)

    def _last(self) -> Iterator[str]:
        try:
            answer = self._work.result()
            self._keep(answer)
            return iter(list(self._form.end(answer)))
        except Exception as error:
            return self._form.fail(self._refusal(error))


def event(data: Mapping[str, Any], name: str = "") -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"  # in ASCII: some clients end lines where Unicode does
