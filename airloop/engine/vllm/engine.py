"""An engine made of vLLM servers: ours, each on its own GPU, or any that are running already.

A request goes to the server that has the conversation's beginning in its cache, unless another has much less load. When
a server dies no token is lost: its replies continue on another, from where they were. Weights reach servers as
adapters, one for each version; a version's name is part of every request, so that nothing is sampled, or found in a
cache, of another one. No server gets requests before its log-probs agree with the trainer's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from airloop.config.vllm_rules import HOTTEST
from airloop.engine.base import (
    Counters,
    Engine,
    EngineDowntime,
    EngineFailed,
    Generation,
    Limits,
    Sampling,
    TokenCallback,
    room_after,
)
from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.affinity import Affinity
from airloop.engine.vllm.parity import disagreement, server_distance, tolerance
from airloop.engine.vllm.pinned import Adapter, PinnedEngine
from airloop.engine.vllm.reply import Reply
from airloop.engine.vllm.server import (
    ANSWER_S,
    READY_S,
    AdapterMissing,
    RequestRejected,
    ServerLost,
    VllmServer,
    none_left,
)
from airloop.engine.vllm.version import INSTALL, caution, check_beside
from airloop.errors import AirError
from airloop.events import Say
from airloop.policy import Policy
from airloop.waits import waiting

WATCH_S = 2.0  # between two checks whether the servers live
IDLE_S = 60.0  # a server that has sent nothing for so long, with requests under way, is checked
STARTS = 3  # of one server; after that it stays away
RETURN_S = 600.0  # a server that we did not start is waited for so long
FAILURES = 5  # of one reply in a row, at servers that live
PROBES = 4  # of a server whose log-probs differ


class VllmEngine(Engine):
    """See Engine."""

    def __init__(
        self,
        policy: Policy,
        servers: Sequence[VllmServer],
        store: AdapterStore,
        context: int,
        batch: int,
        place: Path | None = None,
    ) -> None:
        """`batch` of one server; `place` has their files, and goes with the engine if all went well."""
        self.policy = policy
        self.place = place
        self.servers = list(servers)
        for server in self.servers:
            server.keeps = self._keeps
        self.context = context
        self.counters, self.downtime = Counters(), EngineDowntime()
        self.say: Say = lambda _: None  # whom it tells what is odd, and no failure
        self._store = store
        self._batch = batch
        self._version = policy.version
        self._name = ""  # of the adapter that is served
        self._affinity = Affinity()
        self._ready: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # a server has come back, or has been looked at
        self._closed = self._publishing = False
        self._weights = asyncio.Lock()  # held while the trainer's are changed, or looked at

    @property
    def version(self) -> int:
        return self._version

    @property
    def fallback_reason(self) -> str:
        return ""

    def describe(self) -> Limits:
        detail = {"backend": "vllm", "servers": str(len(self.servers))}
        return Limits(self.context, self._batch * len(self.servers), 0, detail, HOTTEST)

    def answering(self) -> tuple[int, int]:
        return sum(not server.lost for server in self.servers), len(self.servers)

    # --- replies ------------------------------------------------------------------------------------------------

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        order: str = "",
        on_tokens: TokenCallback | None = None,
        adapter: Adapter | None = None,
    ) -> Generation:
        """By an adapter that is held; by the newest without one, or where its files are gone."""
        limit = room_after(token_ids, sampling, self.context)
        asked = time.perf_counter()
        await self.start()
        began = time.perf_counter()
        if adapter is None or not self._store.has(adapter.name):
            adapter = Adapter(self._name, self._version)
        reply = Reply(token_ids, sampling, limit, adapter.name, on_tokens)
        try:
            while not reply.ended:
                await self._continue(reply, order)
        except asyncio.CancelledError:  # the connection closes with the task, and the server stops
            self.counters.abandoned += len(reply.ids)
            raise
        self.counters.sampled += len(reply.ids)
        self.counters.prompt += len(token_ids)
        self.counters.cached += reply.cached
        now = time.perf_counter()
        times = (began - asked, now - began, (reply.first or now) - began)
        return Generation(
            tuple(reply.ids),
            tuple(reply.logprobs),
            "stop" if reply.stopped else "length",
            adapter.version,
            reply.cached,
            *times,
        )

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Engine]:
        with self._store.held(self._name):
            yield PinnedEngine(self, Adapter(self._name, self._version))

    def _keeps(self, name: str) -> bool:  # groups are begun with the newest, even while another comes
        return name == self._name or self._store.is_held(name)

    async def _continue(self, reply: Reply, order: str) -> None:
        """Continues a reply at one server, until the reply or the server ends."""
        server = await self._choose(order, reply.left)
        try:
            async with contextlib.aclosing(server.stream(reply.request())) as pieces:
                async for piece in pieces:
                    reply.take(piece)
            if not reply.ended:
                raise ServerLost("it ended a reply before its end")
        except ServerLost as error:
            if isinstance(error, AdapterMissing) and reply.adapter != self._name:
                await self._load_adapter(server, reply.adapter)  # it was started again, with the newest only
            elif isinstance(error, AdapterMissing) or not await self._is_alive(server):
                server.lost = server.lost or f"{type(error).__name__}: {error}"
            else:  # it lives, and what is between may not
                reply.left.append(server)
            if reply.failed(FAILURES + len(self.servers)):
                raise EngineFailed(f"vLLM answers, and not what it was asked: {error}", f"see {server.log}") from error
        except RequestRejected as error:
            raise EngineFailed(f"vLLM refuses a request: {error}", f"its log says more: {server.log}") from None

    async def _choose(self, order: str, left: Sequence[VllmServer] = ()) -> VllmServer:
        """The server that has this conversation cached, or the one with the least load; one that was `left` only where
        all were."""
        alive = await self._alive()
        return self._affinity.choose([server for server in alive if server not in left] or alive, order)

    async def _alive(self) -> list[VllmServer]:
        """At least one server: where all are lost, and one may come back, that is waited for."""
        until = time.monotonic() + READY_S
        while not (alive := [server for server in self.servers if not server.lost]):
            may = time.monotonic() < until and any(self._may_return(server) for server in self.servers)
            if self._closed or not may:
                raise none_left(self.servers)
            self._changed.clear()
            wait = waiting("a server of vLLM to come back", "vLLM", READY_S, log=self.servers[0].tail)
            with wait, self.downtime.counted():
                await self._changed.wait()
        return alive

    def _may_return(self, server: VllmServer) -> bool:
        if server.lost_for_good():
            return False
        if server.command:
            return server.returning or server.ended() is None or server.starts < STARTS
        return server.returning or time.monotonic() - server.last_activity < RETURN_S

    # --- servers ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Waits until every server has the policy and agrees with the trainer; the first call starts them."""
        if self._ready is None:
            self._ready = asyncio.ensure_future(self._start())
        if not self._ready.done():
            with self.downtime.counted():
                await asyncio.shield(self._ready)
        await self._ready

    async def _start(self) -> None:
        for server in self.servers:
            server.start()
        self._name = self._name or await asyncio.to_thread(self._store.put, self.policy, self._version)
        try:
            with waiting("vLLM to start", "vLLM", READY_S, log=self.servers[0].tail):
                async with asyncio.TaskGroup() as group:
                    for server in self.servers:
                        group.create_task(self._admit_first(server))
        except* (AirError, ServerLost, RequestRejected) as errors:
            first = next(iter(errors.exceptions))
            problem = first.problem if isinstance(first, AirError) else f"vLLM: {first}"
            raise EngineFailed(problem, getattr(first, "fix", "")) from first
        if all(server.lost for server in self.servers):
            raise none_left(self.servers)
        if text := caution({server.url: server.version for server in self.servers}):
            self.say(f"warning: {text}. If anything goes wrong: {INSTALL}, where servers run.")
        self._begin(self._watch())

    async def _admit_first(self, server: VllmServer) -> None:
        """A server that a node manages may be restarted there while it is waited for, or be lost with its node: then
        the run goes on with the others."""
        until = time.monotonic() + READY_S
        while True:
            try:
                return await self._admit(server)
            except (AirError, ServerLost) as error:
                if why := server.lost_for_good():
                    server.lost = why
                    return
                again = isinstance(error, ServerLost) or server.ended() is not None
                if not (server.node_managed and again and time.monotonic() < until):
                    raise
            server.start()
            await asyncio.sleep(WATCH_S)

    async def _admit(self, server: VllmServer) -> None:
        """Checks that a server answers, has the policy and agrees with the trainer; only then it gets requests. Between
        an update and its publication the trainer is ahead of every server: a difference then says nothing of this one,
        which is probed again, however long the publication takes."""
        await server.ready()
        check_beside(server, self.servers)
        until, differed = time.monotonic() + READY_S, 0
        while True:
            name, ahead = self._name, self._ahead
            await server.load(name, self._store.root / name)
            async with self._weights:
                found = await self._logprob_distance(server, name)
            if found <= tolerance(self.policy) and name == self._name:
                break
            differed += name == self._name and not (ahead or self._ahead)
            if differed == PROBES or time.monotonic() > until:
                raise disagreement(server, found, self.policy)
            await asyncio.sleep(WATCH_S)
        check_beside(server, self.servers)  # again: another may have been admitted meanwhile
        server.lost = ""
        self._changed.set()

    @property
    def _ahead(self) -> bool:
        """Whether the trainer has weights that are not served yet."""
        return self._publishing or self.policy.version > self._version

    async def _logprob_distance(self, server: VllmServer, name: str) -> float:
        return await server_distance(self.policy, server, name, self.context)

    async def _watch(self) -> None:
        """Restarts servers that have ended, and checks those that send nothing."""
        while True:
            await asyncio.sleep(WATCH_S)
            for server in self.servers:
                try:
                    await self._check(server)
                except Exception as error:  # this task must not end: no server would be restarted any more
                    server.lost = f"{type(error).__name__}: {error}"
            self._changed.set()  # who waits for one to come back looks whether one still may

    async def _check(self, server: VllmServer) -> None:
        if why := server.lost_for_good():
            server.lost = why
            return server.cancel_requests()
        if not server.lost and (code := server.ended()) is not None:
            server.lost = f"it ended with exit code {code}"
        silent = self._expects_reply(server) and time.monotonic() - server.last_activity > IDLE_S
        if silent and not server.lost and not server.returning:
            server.lost = "" if await self._is_alive(server) else f"no word for {IDLE_S:.0f} s"
            if server.lost:
                await server.end()
        if server.lost and not server.returning:
            self._restart(server)

    def _expects_reply(self, server: VllmServer) -> bool:
        return server.busy + server.posts > 0

    def _restart(self, server: VllmServer) -> None:
        if new := server.ended() is not None:
            if server.starts >= STARTS:
                return
            server.start()
        server.returning = True
        self._begin(self._admit_again(server, new))

    async def _admit_again(self, server: VllmServer, new: bool) -> None:
        """One that lives is tried again where only the way to it failed: a new process would come no further. One that
        hangs would never be ready."""
        until = time.monotonic() + READY_S
        try:
            if server.command and not (new or server.busy or await self._is_alive(server)):
                return await server.end()
            while True:
                try:
                    return await self._admit(server)
                except ServerLost as error:
                    server.lost = f"{type(error).__name__}: {error}"
                    if time.monotonic() > until or not await self._is_alive(server):
                        raise
                await asyncio.sleep(WATCH_S)
        except Exception as error:
            server.lost = f"{type(error).__name__}: {error}"
            await server.end()
        finally:
            server.returning = False

    async def _is_alive(self, server: VllmServer) -> bool:
        """Whether it gives one token in time; a server that is busy, or that has rejected a request, may still be
        alive."""
        if server.ended() is not None:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                return await server.gives_token()
        except (ServerLost, RequestRejected, TimeoutError):
            return False

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- weights ------------------------------------------------------------------------------------------------

    async def publish(self, version: int) -> None:
        """Adapters are immutable: replies under way continue with the one they were begun with."""
        await self.start()
        self._publishing = True
        try:
            name = await asyncio.to_thread(self._store.put, self.policy, version)
            await asyncio.gather(*(self._load_adapter(server, name) for server in self.servers if not server.lost))
            self._name, self._version = name, version
        finally:
            self._publishing = False
        await self._alive()

    async def _load_adapter(self, server: VllmServer, name: str) -> None:
        """Loads an adapter; a second time where the connection broke: one that the server has is not loaded again."""
        server.last_activity = time.monotonic()  # an update may take longer than one may be away: that counts from here
        for left in (1, 0):
            try:
                return await server.load(name, self._store.root / name)
            except ServerLost as error:
                problem: Exception = error
            except RequestRejected as error:
                problem, left = error, 0
            if not left:
                server.lost = f"it could not load {name}: {problem}"
                return

    def set_version(self, version: int) -> None:
        """Before anything is sampled, so that no server has an adapter yet."""
        if self._ready is not None:
            raise RuntimeError("set_version() after something was sampled: publish() tells the servers")
        self._version = version

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Servers have weights and memory of their own and go on sampling: only comparisons with the trainer's weights
        wait."""
        async with self._weights:
            yield

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._tasks, *([self._ready] if self._ready else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.servers))
        self._store.clear()
        started = [server for server in self.servers if server.command and server.starts]
        if self.place is not None and not any(server.starts > 1 or server.lost for server in started):
            shutil.rmtree(self.place, ignore_errors=True)  # else its logs tell what happened
