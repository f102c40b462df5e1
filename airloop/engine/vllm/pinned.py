"""The engine of vLLM servers as a group sees it: all replies by the adapter that was the newest when it was begun."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from airloop.engine.base import Engine, Generation, Limits, Sampling, TokenCallback


class Adapter(NamedTuple):
    """One version of the policy, by its name on the servers."""

    name: str
    version: int


class AdapterEngine(Engine, Protocol):
    """One that samples by any version that it still has."""

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        order: str = "",
        on_tokens: TokenCallback | None = None,
        adapter: Adapter | None = None,
    ) -> Generation: ...


class PinnedEngine(Engine):
    """As long as its adapter is held (AdapterStore.held). Should its files be gone all the same, the newest is taken,
    and the episode counts as one of mixed versions."""

    def __init__(self, engine: AdapterEngine, adapter: Adapter) -> None:
        self._engine, self._adapter = engine, adapter
        self.counters, self.downtime = engine.counters, engine.downtime

    @property
    def version(self) -> int:
        return self._adapter.version

    @property
    def fallback_reason(self) -> str:
        return self._engine.fallback_reason

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        return await self._engine.generate(token_ids, sampling, order, on_tokens, self._adapter)

    async def publish(self, version: int) -> None:
        await self._engine.publish(version)

    def set_version(self, version: int) -> None:
        self._engine.set_version(version)

    def paused(self) -> AbstractAsyncContextManager[None]:
        return self._engine.paused()

    def describe(self) -> Limits:
        return self._engine.describe()

    async def start(self) -> None:
        await self._engine.start()

    def answering(self) -> tuple[int, int]:
        return self._engine.answering()

    async def close(self) -> None:
        await self._engine.close()
