"""The HTTP server of remote agents: they request episodes, play them and report their rewards.

    POST /episodes                {"task": "…"?, "wait_s": 20?}    → {"id", "url", "path", "api_key", "task", "row", …}
    POST /episodes/ID/finish      {"rewards": 1.0 or {"a": 1.0}}, or {"error": "…"} where its program failed
    POST /episodes/ID/abandon     {"error": "…"?}                  it is tried again
    /e/ID/v1/…                    the policy, by the episode's own key

All but the last need the admin's key; an episode's key gives access to its conversation only. The server has a thread
of its own, so that it answers while the run computes: then no episode is pending, and agents are told when to ask
again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.programs.episode_queue import EpisodeQueue, EpisodeResult, PendingEpisode, Refusal
from airloop.programs.run_one import BadScore, as_score
from airloop.serve.cancellation import cancel_if_disconnected
from airloop.serve.chat_form import BadRequest
from airloop.serve.request_limits import RequestBodies
from airloop.serve.server import serving

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("airloop.envs.program")  # among the environments': a run shows them

LONGEST_WAIT_S = 60.0  # of one request for an episode
LOOK_S = 0.1
RETRY_S = 2
START_S = 20.0
LONGEST_ERROR = 2000  # characters
# Headers and paths of requests that are forwarded to the policy.
FORWARDED_HEADERS = ("authorization", "x-api-key", "content-type", "x-stainless-retry-count", "anthropic-version")
POLICY_PATHS = ("v1/chat/completions", "v1/responses", "v1/messages", "v1/models", "inference/v1/generate")
MODEL_PATH = "v1/models/"  # and a name


class RemoteServer:
    """Listens from `start` to `close`, in a thread of its own."""

    def __init__(self, queue: EpisodeQueue, key: str, host: str, port: int) -> None:
        self._queue, self._key, self._at = queue, key, (host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="remote agents", daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._problem: Exception | None = None
        self._request_bodies = RequestBodies()
        self.url = ""

    def start(self) -> None:
        self._thread.start()
        if not self._started.wait(START_S) or self._problem is not None:
            problem = getattr(self._problem, "problem", "") or f"it did not start: {self._problem}"
            raise AirError(f"The server for remote agents: {problem}", "args = { port = … } names another.")
        log.info("agents elsewhere may ask for episodes at %s/episodes", self.url)

    def close(self) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(START_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._problem = error
        self._started.set()

    async def _serve(self) -> None:
        import httpx  # takes a sixth of a second to import, and few runs have remote agents

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False, verify=False)  # of this process
        async with client as self._policy_at, serving(self.app(), *self._at) as self.url:
            self._started.set()
            await self._stop.wait()

    def app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/episodes", self._authorised(self._counts), methods=["GET"]),
                Route("/episodes", self._authorised(self._take), methods=["POST"]),
                Route("/episodes/{id}/finish", self._authorised(self._finish), methods=["POST"]),
                Route("/episodes/{id}/abandon", self._authorised(self._abandon), methods=["POST"]),
                Route("/e/{id}/{rest:path}", self._policy, methods=["GET", "POST"]),
            ]
        )

    def _authorised(self, answer: Callable[[Request, dict[str, Any]], Awaitable[Any]]) -> Any:
        """A handler that needs the admin's key, and reports errors in the form that OpenAI's clients know."""
        from starlette.responses import JSONResponse

        async def respond(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            headers = {}
            try:
                if not hmac.compare_digest(given.encode(), self._key.encode()):
                    raise Refusal(401, "This is for who holds the admin's key; an episode's key does not open it.")
                return JSONResponse(await answer(request, await self._object(request)))
            except Refusal as refusal:
                status, why = refusal.status, str(refusal)
                headers = {"Retry-After": str(RETRY_S)} if status == 503 else {}
            except BadRequest as error:
                status, why = error.status, str(error)
            return JSONResponse({"error": {"message": why, "type": "episodes", "code": status}}, status, headers)

        return respond

    async def _object(self, request: Request) -> dict[str, Any]:
        try:
            body = json.loads(await self._request_bodies.read(request) or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"The body is not JSON: {error}.") from None
        if not isinstance(body, dict):
            raise Refusal(400, "The body must be an object.")
        return body

    # --- answers --------------------------------------------------------------------------------------------

    async def _counts(self, request: Request, body: dict[str, Any]) -> Any:
        return self._queue.counts()

    async def _take(self, request: Request, body: dict[str, Any]) -> Any:
        wanted, wait_s = body.get("task"), body.get("wait_s", 0)
        if not isinstance(wanted, str | None) or not isinstance(wait_s, int | float) or not math.isfinite(wait_s):
            raise Refusal(400, "task is a task's id, wait_s a number of seconds; both may be left out.")
        until = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        while (episode := self._queue.take(wanted)) is None:
            over = self._stop is not None and self._stop.is_set()
            if over or time.monotonic() >= until or await request.is_disconnected():
                raise Refusal(503, "No episode is waiting now: ask again.")
            await asyncio.sleep(LOOK_S)
        return _facts(episode, str(request.base_url).rstrip("/"))

    async def _finish(self, request: Request, body: dict[str, Any]) -> Any:
        error = str(body.get("error") or "")[:LONGEST_ERROR]
        try:
            rewards = None if body.get("rewards") is None else as_score(body["rewards"])
        except BadScore as bad:
            raise Refusal(400, f"{bad}.") from None
        if rewards is None and not error:
            raise Refusal(400, 'Say what it was worth, {"rewards": 1.0}, or why there is no score, {"error": "…"}.')
        self._queue.finish(request.path_params["id"], EpisodeResult(rewards, error))
        return {"finished": request.path_params["id"]}

    async def _abandon(self, request: Request, body: dict[str, Any]) -> Any:
        why = str(body.get("error") or "")[:LONGEST_ERROR]
        self._queue.finish(request.path_params["id"], EpisodeResult(None, why, abandoned=True))
        return {"abandoned": request.path_params["id"]}

    async def _policy(self, request: Request) -> Response:
        """Forwards a request to the policy to the run's own endpoint, which checks the episode's key."""
        import httpx
        from starlette.responses import JSONResponse, Response

        address, rest = self._queue.address(request.path_params["id"]), request.path_params["rest"]
        try:
            if address is None or not (rest in POLICY_PATHS or rest.startswith(MODEL_PATH)):
                raise BadRequest("Incorrect API key provided, or there is no such episode.", status=401)
            url = f"{address.base_url.removesuffix('/v1')}/{rest}"
            headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
            client = self._policy_at.request(
                request.method, url, headers=headers, content=await self._request_bodies.read(request)
            )
            response = await cancel_if_disconnected(request, client)
        except (BadRequest, httpx.HTTPError) as error:
            refused = error if isinstance(error, BadRequest) else self._line_lost(request.path_params["id"])
            again = {"Retry-After": str(RETRY_S)} if refused.status == 503 else {}
            return JSONResponse(refused.as_json(), refused.status, again)
        headers = {name: response.headers[name] for name in ("content-type", "retry-after") if name in response.headers}
        return Response(response.content, response.status_code, headers)

    def _line_lost(self, id: str) -> BadRequest:
        """Of a request whose answer did not come from the run's own endpoint."""
        if self._queue.address(id) is None:
            return BadRequest("The episode's endpoint is gone: its time is over.", code="episode_over", status=410)
        return BadRequest("The line to the policy was lost: ask again.", code="connection_lost", status=503)


def _facts(episode: PendingEpisode, base: str) -> dict[str, Any]:
    path = f"/e/{episode.id}/v1"
    return {
        "id": episode.id,
        "url": base + path,
        "path": path,  # for agents that reach this server by another host name
        "api_key": episode.address.api_key,
        "model": episode.address.model,
        "task_id": episode.task,
        "task": episode.row,
        "seed": episode.seed,
        "seconds": episode.address.seconds,
    }
