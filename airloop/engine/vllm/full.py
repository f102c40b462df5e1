"""Full weights for vLLM servers, where all of them are trained: pause, clear the cache, start, update, finish, resume,
then check that the server's log-probs agree with the trainer's, and repeat all of it where they do not.

Unlike adapters, weights are replaced in place: nothing is sampled meanwhile, and a server's cache is of the weights
before, whatever version it is labelled with. So it is cleared, and cache keys are salted with the version as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import httpx

from airloop.engine.base import Engine
from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.parity import tolerance
from airloop.engine.vllm.plugin.weights import FILE, file_digest
from airloop.engine.vllm.server import ROUTES, RequestRejected, ServerLost, VllmServer
from airloop.models.silence_transformers import silenced
from airloop.policy import Policy

UNFINISHED = "air-unfinished"  # the version of weights that are partly of another
DEV = "VLLM_SERVER_DEV_MODE=1 in its environment"
STEPS = ("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/resume")


class FullStore(AdapterStore):
    """Versions as whole models."""

    def _write(self, policy: Policy, folder: Path) -> None:
        with silenced():
            policy.model.save_pretrained(str(folder), max_shard_size="1000TB")  # one file, however large

    def _digest(self, folder: Path) -> str:
        return file_digest(folder / FILE)


class FullServer(VllmServer):
    """Its RL routes ask for no key: it listens to this machine only."""

    routes: ClassVar[Mapping[str, str]] = {
        "/inference/v1/generate": ROUTES["/inference/v1/generate"],
        **dict.fromkeys(STEPS, DEV),
    }

    async def load(self, name: str, path: Path) -> None:
        """Replaces its weights. An update that fails half-way leaves a server that reports healthy and crashes with the
        next request; as long as it is paused, repeating the update repairs it."""
        if name in self._adapters:
            return
        self._adapters.clear()
        try:
            await self._replace(name, path)
        except (RequestRejected, ServerLost) as error:
            error.fix = f"its log says more: {self.log}"
            raise
        self._adapters = [name]

    async def _replace(self, name: str, path: Path) -> None:
        await self._step("/pause?mode=wait&clear_cache=true")
        try:
            await self._update(name, path)
        except (RequestRejected, ServerLost):
            # One that it believes to be under way it would not begin a second time.
            with contextlib.suppress(RequestRejected, ServerLost):
                await self._step("/finish_weight_update", {"weight_version": UNFINISHED})
            await self._update(name, path)
        await self._step("/reset_prefix_cache")
        await self._step("/resume")
        if (has := await self._version()) != name:
            raise ServerLost(f"it was given {name}, and says that it has {has}")

    async def _update(self, name: str, path: Path) -> None:
        await self._step("/start_weight_update")
        what = {"path": str(path / FILE), "digest": name.rpartition("-")[2]}  # what was written, not what is there now
        await self._step("/update_weights", {"update_info": what})
        await self._step("/finish_weight_update", {"weight_version": name})

    async def _step(self, route: str, body: Mapping[str, Any] | None = None) -> None:
        if not await self._post(route, body or {}):
            raise RequestRejected(f"it does not have {route}")

    async def _version(self) -> str:
        try:
            return str((await self.client.get("/weight_info")).json()["weight_version"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ServerLost(f"{type(error).__name__}: {error}") from error

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The served model has the same name for every version."""
        async with contextlib.aclosing(super().stream({**body, "model": self.model})) as pieces:
            async for piece in pieces:
                yield piece


class FullEngine(VllmEngine):
    @contextlib.contextmanager
    def pinned(self) -> Iterator[Engine]:
        """Weights are replaced in place: there is only the newest."""
        yield self

    async def _load_adapter(self, server: VllmServer, name: str) -> None:
        """Loads the weights and checks the result: a server may report a failed update as a success. One that cannot be
        repaired is ended, restarted with the model's own weights, and given these."""
        server.returning = True  # until this is done, nothing else restarts it
        try:
            for left in (1, 0):
                await super()._load_adapter(server, name)
                if server.lost or await self._agrees(server, name):
                    break
                server.lost = "" if left else f"its log-probs are not the trainer's, with {name}"
                server.forget()
            if server.lost:
                await server.end()
        finally:
            server.returning = False

    async def _agrees(self, server: VllmServer, name: str) -> bool:
        try:
            async with self._weights:
                return await self._logprob_distance(server, name) <= tolerance(self.policy)
        except (ServerLost, RequestRejected):
            return False
