"""All the weights for servers of vLLM, where every one of them is trained: pause, clear, start, update, finish, resume,
then a look at whether its log-probs are the trainer's, and the whole once more where they are not.

Unlike an adapter, weights come in the place of others: nothing is sampled meanwhile, and what is in a server's cache is
of the weights before, whatever version it is labelled with. So it is cleared, and the version salts it besides.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import httpx

from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.parity import tolerance
from airloop.engine.vllm.plugin.weights import FILE, file_digest
from airloop.engine.vllm.server import ROUTES, Refused, ServerLost, VllmServer
from airloop.models.quiet import quiet
from airloop.policy import Policy

UNFINISHED = "air-unfinished"  # the version of weights that are partly of another
DEV = "VLLM_SERVER_DEV_MODE=1 in its environment"
STEPS = ("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/resume")


class FullStore(AdapterStore):
    """Versions as whole models."""

    def _write(self, policy: Policy, folder: Path) -> None:
        with quiet():
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
        """In the place of what it has. An update that fails half-way leaves a server that says it is well, and dies of
        the next request; as long as it is paused, to do it all again repairs it."""
        if name in self._adapters:
            return
        self._adapters.clear()
        try:
            await self._replace(name, path)
        except (Refused, ServerLost) as error:
            error.fix = f"its log says more: {self.log}"
            raise
        self._adapters = [name]

    async def _replace(self, name: str, path: Path) -> None:
        await self._step("/pause?mode=wait&clear_cache=true")
        try:
            await self._update(name, path)
        except (Refused, ServerLost):
            # One that it believes to be under way it would not begin a second time.
            with contextlib.suppress(Refused, ServerLost):
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
        if not await self._told(route, body or {}):
            raise Refused(f"it does not have {route}")

    async def _version(self) -> str:
        try:
            return str((await self.client.get("/weight_info")).json()["weight_version"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ServerLost(f"{type(error).__name__}: {error}") from error

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Whatever the version, it is called by one name here."""
        async with contextlib.aclosing(super().stream({**body, "model": self.model})) as pieces:
            async for piece in pieces:
                yield piece


class FullEngine(VllmEngine):
    async def _give(self, server: VllmServer, name: str) -> None:
        """With a look at what came of it: of an update that went well by its own words, nothing else would tell. One
        that cannot be repaired is ended, and started anew with the model's own weights, to be given these."""
        server.returning = True  # until this is over, nobody else brings it back
        try:
            for left in (1, 0):
                await super()._give(server, name)
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
                return await self._apart(server, name) <= tolerance(self.policy)
        except (ServerLost, Refused):
            return False
