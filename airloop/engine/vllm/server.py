"""One vLLM server: starting it, its health, its requests, and the end of its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx

from airloop.certificates import certificates_for
from airloop.engine.base import EngineFailed
from airloop.engine.vllm.plugin.adapters import KEY
from airloop.errors import AirError
from airloop.text.keys import without_keys

PROCESS_GUARD = Path(__file__).with_name("process_guard.py")
MODULE = "vllm.entrypoints.openai.api_server"  # the script `vllm` does not start with the build for CPUs
BASE = "air-base"  # what servers that we start call the model
ROUTES = {  # what we ask for, and how a server comes to have it
    "/inference/v1/generate": "--enable-scale-out",
    "/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, and --enable-lora",
}
FILES_FIX = 'its machine must see the same files, or pull adapters: inference.vllm.adapters = "http" (docs/vllm.md).'
PLUGIN_FIX = (
    "start it with the folder that `air vllm plugin --out DIR` writes in its PYTHONPATH, and with this run's "
    f"{KEY} in its environment (VLLM_PLUGINS, if set, names air_adapters)."
)
ROUTE_FIX = (
    "its machine must reach this one at inference.vllm.adapters_host and adapters_port: name an address that it does, "
    "or keep a tunnel open (docs/vllm.md)."
)
LORA_FIX = (
    "start it with --enable-lora, a --max-lora-rank of at least the adapter's and --max-loras 2, and one more for each "
    f"of max_staleness; {FILES_FIX}"
)
NODE_LOST_FIX = "mend what it names on that node, then go on with `air train --resume RUN`."
READY_S = 900.0  # for the weights to be read and kernels to be made
ANSWER_S = 120.0  # for a single token, of a server that lives
SILENT_S = 300.0  # between two tokens of a reply
LOOK_S = 0.5
END_S = 30.0  # for the process guard to end it
LOADED_ADAPTERS = 2  # adapters: the newest, and the one that replies under way were begun with
TAIL = 30  # lines of its log that are shown


class ServerLost(Exception):
    """The server has ended or does not answer; other servers may."""

    def __init__(self, problem: str, fix: str = LORA_FIX) -> None:
        super().__init__(problem)
        self.fix = fix


class AdapterMissing(ServerLost):
    """The server answers, but does not have the adapter: it was restarted."""


class RequestRejected(Exception):
    """The server answers, and rejects the request."""

    def __init__(self, problem: str, fix: str = LORA_FIX) -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(eq=False)
class VllmServer:
    """`command` and `env` are set for a server that we start, and empty for one that is given by its address."""

    url: str
    key: str = ""
    key_name: str = "VLLM_API_KEY"  # where it comes from
    context: int = 0  # that it must have
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    model: str = BASE
    version: str = ""  # of vLLM, by its own word
    busy: int = 0  # replies under way
    posts: int = 0  # other requests under way: an adapter to be loaded, a step of an update
    last_activity: float = 0.0  # when it last sent something
    starts: int = 0
    returning: bool = False  # it is being checked before it gets requests again
    shared: bool = False  # another rank started it, and manages its adapters
    pulls: bool = False  # it fetches adapters over HTTP, by our plugin: it does not see our files
    older: int = 0  # versions more than LOADED_ADAPTERS that replies under way may be of
    keeps: Callable[[str], bool] = field(default=lambda name: False, repr=False)  # whether an adapter must stay on it
    lost: str = "it is being started"  # why it gets no requests; empty: it does
    routes: ClassVar[Mapping[str, str]] = ROUTES
    node_managed: ClassVar[bool] = False  # its node restarts it
    _adapters: list[str] = field(default_factory=list, repr=False)  # that it has, the oldest first
    _waits: set[asyncio.Timeout] = field(default_factory=set, repr=False)  # of requests under way
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _client: httpx.AsyncClient | None = field(default=None, repr=False)

    def start(self) -> None:
        if not self.command:
            return
        assert self.log is not None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self._adapters.clear()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-IS", str(PROCESS_GUARD), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
            )

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
            timeout = httpx.Timeout(ANSWER_S, read=SILENT_S, pool=None)
            verify = certificates_for(self.url)
            known: dict[str, Any] = {"headers": headers, "limits": limits, "timeout": timeout, "verify": verify}
            self._client = httpx.AsyncClient(base_url=self.url, trust_env=not self._is_near, **known)
        return self._client

    @property
    def _is_near(self) -> bool:
        """On this machine, or on a node of this run: no proxy of the environment leads there."""
        host = urlsplit(self.url).hostname or ""
        return bool(self.command) or self.node_managed or host in ("localhost", "::1") or host.startswith("127.")

    async def ready(self) -> None:
        """Waits until it takes requests. AirError with the end of its log where it ends instead, or lacks a route."""
        deadline = asyncio.get_running_loop().time() + self._ready_s
        while True:
            if why := self.lost_for_good():
                problem = f"The vLLM at {self.url} is gone: {why}.\n{self.tail()}"
                raise AirError(problem.rstrip(), NODE_LOST_FIX)
            if (code := self.ended()) is not None:
                raise AirError(f"vLLM did not start (exit code {code}):\n{self.tail()}", _start_fix(self.tail()))
            if await self.is_healthy(5.0):
                break
            if asyncio.get_running_loop().time() > deadline:
                what = f"\n{self.tail()}" if self.command else ""
                raise AirError(f"No vLLM answers at {self.url}.{what}", "start it, or correct inference.vllm.urls.")
            await asyncio.sleep(LOOK_S)
        await self._check_routes()
        self.version = await self._read_version()

    async def _read_version(self) -> str:
        """Empty where it does not say: what it can do was looked at, and that decides."""
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return str((await self.client.get("/version")).json()["version"])
        return ""

    @property
    def _ready_s(self) -> float:
        return READY_S if self.command else ANSWER_S

    def lost_for_good(self) -> str:
        """Why it will not be restarted, where its node manages it and says so; else empty."""
        return ""

    def cancel_requests(self) -> None:
        """Cancels requests that wait for an answer: a machine that is lost closes no connection."""
        for wait in self._waits:
            wait.reschedule(0.0)

    @contextlib.asynccontextmanager
    async def _awaited(self) -> AsyncIterator[asyncio.Timeout]:
        """So long, whatever trickles in meanwhile: whoever waits may put it off."""
        try:
            async with asyncio.timeout(SILENT_S) as wait:
                self._waits.add(wait)
                try:
                    yield wait
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            raise ServerLost(self.lost_for_good() or f"nothing of what it was asked came in {SILENT_S:.0f} s") from None

    async def is_healthy(self, timeout_s: float) -> bool:
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(timeout_s):  # a client's own would begin anew with every byte
                return (await self.client.get("/health", timeout=timeout_s)).status_code == 200
        return False

    async def _check_routes(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = (await self.client.get("/openapi.json")).json()["paths"]
                answer = await self.client.get("/v1/models")
            if answer.status_code == 401:
                raise AirError(f"The vLLM at {self.url} wants another key.", f"set {self.key_name} to its --api-key.")
            base: dict[str, Any] = next((model for model in answer.json()["data"] if not model.get("parent")), {})
            self.model = str(base["id"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, TimeoutError) as error:
            raise AirError(f"What answers at {self.url} is no vLLM: {error!r}.", "correct the address.") from None
        for route, how in self.routes.items():
            if route not in found:
                raise AirError(f"The vLLM at {self.url} does not have {route}.", f"start it with {how}.")
        if (room := base.get("max_model_len") or self.context) < self.context:
            raise AirError(
                f"The vLLM at {self.url} has a context of {room} tokens, and episodes may have {self.context}.",
                f"start it with --max-model-len {self.context}, or set seq_len = {room}.",
            )

    def ended(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def tail(self) -> str:
        if self.log is None or not self.log.is_file():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return without_keys("\n".join(lines[-TAIL:]))

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """A reply's pieces as they come. ServerLost where it stops half-way: what came until then is valid."""
        self.busy += 1
        self.last_activity = time.monotonic()
        try:
            response = self.client.stream("POST", "/inference/v1/generate", json={**body, "stream": True})
            async with self._awaited() as wait, response as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")[:500]
                    if answer.status_code == 404 and body["model"] != self.model:
                        self._adapters = [name for name in self._adapters if name != body["model"]]
                        raise AdapterMissing(text)
                    raise (RequestRejected if answer.status_code < 500 else ServerLost)(f"{answer.status_code}: {text}")
                ended = False
                async for line in answer.aiter_lines():
                    self.last_activity = time.monotonic()
                    if line.startswith("data: ") and line != "data: [DONE]":
                        piece = json.loads(line[6:])
                        wait.reschedule(asyncio.get_running_loop().time() + SILENT_S)
                        if "error" in piece:
                            raise ServerLost(str(piece["error"]))
                        yield piece
                    ended = ended or line == "data: [DONE]"
                if not ended:
                    raise ServerLost("its answer broke off")
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise ServerLost(f"{type(error).__name__}: {error}") from error
        finally:
            self.busy -= 1

    async def gives_token(self) -> bool:
        """Of the model without an adapter."""
        sampling = {"max_tokens": 1, "detokenize": False}
        body = {"model": self.model, "token_ids": [1], "sampling_params": sampling}
        return [piece async for piece in self.stream(body)] != []

    async def load(self, name: str, path: Path) -> None:
        """An adapter, which requests then call by its name. Never in the place of another: replies may be under way, so
        the one before stays for a while."""
        if name not in self._adapters:  # else the same weights, and what is cached of them is valid
            await (self._pull(name) if self.pulls else self._read(name, path))
        self._adapters = [*(other for other in self._adapters if other != name), name]
        while not self.shared and (old := self._superfluous()):
            self._adapters.remove(old)
            await self._post("/v1/unload_lora_adapter", {"lora_name": old})

    def _superfluous(self) -> str | None:
        """The oldest adapter that may go, where there are too many; it is asked anew each time."""
        if len(self._adapters) <= LOADED_ADAPTERS + self.older:
            return None
        return next((name for name in self._adapters[:-1] if not self.keeps(name)), None)

    async def _read(self, name: str, path: Path) -> None:
        if not await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}):
            raise RequestRejected(f"{path} is not there for {self.url}.", FILES_FIX)

    async def _pull(self, name: str) -> None:
        """Any request for a model that it does not know makes it ask our plugin; this one does not wait for its turn
        among the replies."""
        try:
            known = await self._post("/tokenize", {"model": name, "prompt": "a"})
        except RequestRejected as error:
            raise RequestRejected(f"{self.url} cannot pull the adapter: {error}", PLUGIN_FIX) from None
        except ServerLost as error:
            raise ServerLost(f"{self.url} cannot pull the adapter: {error}", ROUTE_FIX) from None
        if not known:
            raise RequestRejected(f"{self.url} has nothing to pull adapters with.", PLUGIN_FIX)

    def forget(self) -> None:
        """Forgets which adapters it has: all are loaded again."""
        self._adapters.clear()

    async def _post(self, route: str, body: Mapping[str, Any]) -> bool:
        """Sends a POST request. False where what its body names does not exist (404)."""
        self.posts += 1
        try:
            # A server that fails at it hangs up after its answer, and who comes next would find a line that is dead.
            async with self._awaited():
                answer = await self.client.post(route, json=dict(body), headers={"Connection": "close"})
        except httpx.HTTPError as error:
            raise ServerLost(f"{type(error).__name__}: {error}") from error
        finally:
            self.posts -= 1
        self.last_activity = time.monotonic()
        if answer.status_code == 400 and "already been loaded" in answer.text:
            return True  # the answer of the first time was lost: names say what is in them, so it is the same
        if answer.status_code not in (200, 404):
            raise (RequestRejected if answer.status_code < 500 else ServerLost)(
                f"{answer.status_code}: {answer.text[:500]}"
            )
        return answer.status_code == 200

    async def end(self) -> None:
        """Ends the process of a server that we started."""
        self.close_stdin()
        await asyncio.to_thread(self.wait, END_S)

    def close_stdin(self) -> None:
        """Tells the process guard to end the server, without waiting for it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, wait_s: float) -> None:
        """Waits for the end of the process, after `close_stdin`."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)

    async def close(self) -> None:
        if not self.command and not self.shared:  # it goes on without us
            for name in self._adapters:
                with contextlib.suppress(ServerLost, RequestRejected):
                    await self._post("/v1/unload_lora_adapter", {"lora_name": name})
            self._adapters.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        await self.end()
        self._process = None


def none_left(servers: Sequence[VllmServer]) -> EngineFailed:
    reasons = "\n".join(f"{server.url}: {server.lost}" for server in servers)
    tail = next((tail for server in servers if (tail := server.tail())), "")
    return EngineFailed(
        f"No server of vLLM is left.\n{reasons}\n{tail}".rstrip(),
        "everything sampled is saved: go on with `air train --resume RUN`.",
    )


def _start_fix(tail: str) -> str:
    if "No module named 'vllm'" in tail or f"No module named {MODULE.partition('.')[0]!r}" in tail:
        return 'name an interpreter that has it: inference.vllm.python = "…/bin/python" (pip install vllm there).'
    return "its log says more; what it was started with stands at its beginning."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
