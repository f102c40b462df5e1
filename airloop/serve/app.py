"""The endpoint: OpenAI's interface over HTTP, above any engine, in the process that trains.

Every episode has an address and a key of its own. The key is derived from the episode's id, so that whoever holds one
reaches that episode and no other, and nothing that is stored tells any.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airloop.engine.base import ContextFull, EngineFailed
from airloop.errors import AirError
from airloop.serve.answer import Answer
from airloop.serve.anthropic_form import MessagesForm, read_messages_request
from airloop.serve.cancellation import (
    CONNECTION,
    DisconnectListener,
    cancel_and_wait,
    cancel_if_disconnected,
    client_disconnected,
    set_when_done,
)
from airloop.serve.chat_answer import ChatForm
from airloop.serve.chat_form import BadRequest, ChatRequest, read_request, whole_characters
from airloop.serve.episode import ServedEpisode
from airloop.serve.refusals import OVERLOADED, UNREAD
from airloop.serve.request_limits import TWO_LENGTHS, RequestBodies
from airloop.serve.responses_form import ResponsesForm, read_responses_request
from airloop.serve.stable_prefix import StreamListener
from airloop.serve.stream import EventStream, Form, WholeAnswer
from airloop.serve.tokens_form import read_tokens_request, tokens_answer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Router

log = logging.getLogger(__name__)
RETRY_S = 1  # after trouble that is not the client's
RETRIES = "x-stainless-retry-count"  # what OpenAI's and Anthropic's clients count their attempts in
Read = Callable[[Any], ChatRequest]


@dataclass
class Endpoint:
    """The endpoint of episodes, by their ids, and of a policy without one where `anyone` is given.

    endpoint = Endpoint("my-model")
    key = endpoint.open("ep-1", ServedEpisode(engine, tokenizer, sampling, seed=1))
    app = endpoint.app()
    """

    model: str
    anyone: Callable[[], ServedEpisode] | None = None
    api_key: str | None = field(default=None, repr=False)  # for requests without an episode; None: no key is needed
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    episodes: dict[str, ServedEpisode] = field(default_factory=dict)
    _request_bodies: RequestBodies = field(default_factory=RequestBodies, repr=False)
    _keys: dict[str, str] = field(default_factory=dict, repr=False)  # of the episodes that are open

    def __post_init__(self) -> None:
        self._invalid_key = self.key(secrets.token_hex(16))

    def open(self, id: str, episode: ServedEpisode) -> str:
        """The key for an episode's agent."""
        self.episodes[id] = episode
        self._keys[id] = self.key(id)
        return self._keys[id]

    def close(self, id: str) -> ServedEpisode:
        """Its key is invalid from now on, and answers that are under way are cancelled."""
        episode = self.episodes.pop(id)
        del self._keys[id]
        episode.end()
        return episode

    def crowded(self, owner: str = "") -> None:
        """A connection was closed for others, or refused unread: of this episode, or, without an owner, of any."""
        for id, episode in self.episodes.items():
            if owner in ("", id):
                episode.refusals.crowded += 1

    def key(self, id: str) -> str:
        made = hmac.digest(self.secret, id.encode(), hashlib.sha256)
        return "air-" + base64.urlsafe_b64encode(made).decode().rstrip("=")

    def app(self) -> Router:
        """Routes alone: errors, for which an application of Starlette has pages, are answered by `_ErrorHandler`."""
        from starlette.routing import Route, Router

        posts = {
            "/v1/chat/completions": self._chat,
            "/v1/responses": self._responses,
            "/v1/messages": self._messages,
            "/inference/v1/generate": self._generate,
        }
        gets = {"/v1/models": self._models, "/v1/models/{model:path}": self._named_model}
        routes = [
            Route(front + path, _ErrorHandler(answer), methods=[method])
            for method, answers in (("POST", posts), ("GET", gets))
            for path, answer in answers.items()
            for front in ("/e/{episode}", "")
        ]
        # With redirects a client would follow with its key, to whatever Host it has named.
        return Router(routes=routes, redirect_slashes=False)

    # --- answers ----------------------------------------------------------------------------------------------

    def _episode(self, request: Request) -> ServedEpisode:
        """The episode of a request, if the key is its own. A refusal does not show whether there is such an episode,
        not even by the time that it takes."""
        id = request.path_params.get("episode")
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or request.headers.get("x-api-key", "")
        if id is None:
            if self.anyone is not None and (self.api_key is None or _same(given, self.api_key)):
                return self.anyone()
        elif _same(given, self._keys.get(id, self._invalid_key)) and id in self.episodes:
            if (connection := request.scope.get("state", {}).get(CONNECTION)) is not None:
                connection.owner = id
            return self.episodes[id]
        raise BadRequest("Incorrect API key provided, or there is no such episode.", code="invalid_api_key", status=401)

    async def _body(self, request: Request, episode: ServedEpisode) -> tuple[Any, bytes]:
        """What was sent, as JSON, and a digest of it. A request that came by one connection too many is refused only
        when it has been read: so it is known whose it is, and when it is answered after all."""
        try:
            held = await self._request_bodies.read(request)
        except BadRequest as error:
            if error.code == OVERLOADED:
                episode.refusals.unanswered.add(UNREAD)
            raise
        digest = hashlib.blake2b(held, digest_size=16).digest()
        connection = request.scope.get("state", {}).get(CONNECTION)
        if connection is not None and not connection.has_room():
            episode.refusals.unanswered.add(digest)
            raise BadRequest("There are too many connections.", code=OVERLOADED, status=503)
        try:
            body = json.loads(held)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"The body is not JSON: {error}.", code="invalid_json") from None
        # Half a character, as clients send that cut a text in the middle of one.
        return whole_characters(body) if b"\\u" in held else body, digest

    async def _models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._episode(request)
        return JSONResponse({"object": "list", "data": [_model_card(self.model)]})

    async def _named_model(self, request: Request) -> Response:
        """There is one model, which answers to every name."""
        from starlette.responses import JSONResponse

        self._episode(request)
        return JSONResponse(_model_card(request.path_params["model"]))

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, read_request, lambda asked, by: ChatForm(self.model, asked, by.tokenizer))

    async def _messages(self, request: Request) -> Response:
        return await self._answer(request, read_messages_request, lambda *_: MessagesForm(self.model))

    async def _responses(self, request: Request) -> Response:
        return await self._answer(request, read_responses_request, lambda *_: ResponsesForm(self.model))

    async def _answer(self, request: Request, read: Read, made: Callable[[ChatRequest, ServedEpisode], Form]) -> Any:
        """Reads a request, has it answered, and writes the answer down, each in the client's own form."""
        episode = self._episode(request)
        body, digest = await self._body(request, episode)
        with episode.defects_noted(), episode.refusals.answering(digest, _again(request)):
            return await self._answer_read(request, episode, digest, read(body), made)

    async def _answer_read(
        self,
        request: Request,
        episode: ServedEpisode,
        digest: bytes,
        asked: ChatRequest,
        made: Callable[[ChatRequest, ServedEpisode], Form],
    ) -> Any:
        form = made(asked, episode)
        # A client that retries never got its answer: it gets that one. The same request as a new one is a second
        # sample.
        made_before = episode.take_answer(digest)
        kept = made_before if _again(request) else None

        def keep(answer: Answer) -> None:
            episode.keep_answer(digest, answer)

        if asked.stream:
            listener = StreamListener()
            work = _saved(kept, listener) if kept else episode.chat(asked, listener)
            return await _streamed(request, form, listener, work, keep)
        answer = kept if kept else await cancel_if_disconnected(request, episode.chat(asked))
        keep(answer)
        return WholeAnswer(form.whole(answer))

    async def _generate(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        episode = self._episode(request)
        body, digest = await self._body(request, episode)
        with episode.defects_noted(), episode.refusals.answering(digest, _again(request)):
            asked = read_tokens_request(body)
            reply, stop = await cancel_if_disconnected(request, episode.generate(asked))
            return JSONResponse(tokens_answer(asked, reply, stop))


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "airloop"}


def _again(request: Request) -> bool:
    """Whether its client sends it once more, since it had no answer."""
    return bool(request.headers.get(RETRIES, "0") != "0")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


async def _saved(answer: Answer, listener: StreamListener) -> Answer:
    listener.prompt_tokens = answer.prompt_tokens
    return answer


async def _streamed(
    request: Request, form: Form, listener: StreamListener, work: Awaitable[Answer], keep: Callable[[Answer], None]
) -> EventStream:
    """The response, as soon as there is text to send; errors before that are raised."""
    under_way = set_when_done(work, listener.changed)
    try:
        async with DisconnectListener(request.scope, request.receive, listener.changed.set) as listening:
            await listener.changed.wait()
            if listening.gone and not under_way.done():
                raise client_disconnected()
            if under_way.done():
                under_way.result()
        return EventStream(form, listener, under_way, refusal_of, keep)
    except BaseException:
        await cancel_and_wait(under_way)
        raise


class _ErrorHandler:
    """Answers errors in the form that clients know: as the client's fault, or as one to retry. It is an ASGI
    application itself, so that Starlette adds no error handling of its own."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request

        response = await self._response(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            return await self._answer(request)
        except Exception as error:
            refused = refusal_of(error)
        headers = {"Retry-After": str(RETRY_S)} if refused.status == 503 else {}
        if refused.code in (TWO_LENGTHS, OVERLOADED):
            headers["Connection"] = "close"  # what follows may belong to another request; or there are too many
        return JSONResponse(refused.as_json(), status_code=refused.status, headers=headers)


def refusal_of(error: Exception) -> BadRequest:
    match error:
        case BadRequest():
            return error
        case ContextFull():
            return BadRequest(str(error), param="messages", code="context_length_exceeded")
        case EngineFailed():
            return BadRequest(error.problem.splitlines()[0], code="engine_failed", status=503)
        case AirError():  # of a chat template that cannot have such a conversation
            return BadRequest(error.problem, param="messages", code="invalid_conversation")
    log.error("an answer of the endpoint", exc_info=error)
    return BadRequest("Something went wrong here: see the log.", code="internal_error", status=500)
