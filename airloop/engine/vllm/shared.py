"""The same servers for several ranks. The first rank starts, watches and ends them, and publishes weights; the others
receive their addresses and the served adapter. Each rank requests the replies of its own episodes.

Ranks synchronise twice: when servers are ready, and when a version is published, at the same places of every rank's
loop.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.remote_servers import NodeServer, ServerStatusFile
from airloop.engine.vllm.server import ANSWER_S, VllmServer
from airloop.ranks import Ranks


@dataclass(frozen=True)
class SharedServers:
    """What the first rank sends to the others."""

    servers: tuple[tuple[str, str, str], ...]  # address, key and where that comes from
    adapters: str  # the directory that has them
    name: str  # of the newest
    pulls: bool  # adapters over HTTP


class SharedEngine(VllmEngine):
    """Of one of several ranks; one that is not the first is made without servers."""

    def __init__(self, ranks: Ranks, *given: Any) -> None:
        super().__init__(*given)
        self._ranks = ranks

    async def _start(self) -> None:
        if self._ranks.first:
            await super()._start()
        served = await self._ranks.all_gather(self._served(), "the servers of vLLM, which the first rank starts")
        if not self._ranks.first:
            self._adopt(served[0])
            await super()._start()

    async def publish(self, version: int) -> None:
        """Once, by the first rank: all have made the same update, so its adapter is everybody's."""
        await self.start()
        if self._ranks.first:
            await super().publish(version)
        served = await self._ranks.all_gather(self._served(), "the new adapter, which the first rank publishes")
        self._name, self._version = served[0].name, version

    def _served(self) -> SharedServers:
        servers = tuple((server.url, server.key, server.key_name) for server in self.servers)
        pulls = any(server.pulls for server in self.servers)
        return SharedServers(servers, str(self._store.root), self._name, pulls)

    def _adopt(self, served: SharedServers) -> None:
        known: dict[str, Any] = {"context": self.context, "shared": True, "pulls": served.pulls}
        status_file = ServerStatusFile.from_environment()
        kind = VllmServer if status_file is None else functools.partial(NodeServer, status_file=status_file)
        self.servers = [kind(*where, **known, _adapters=[served.name]) for where in served.servers]
        self._store = AdapterStore(Path(served.adapters), "")
        self._name = served.name

    def _expects_reply(self, server: VllmServer) -> bool:
        """By other ranks, perhaps: whoever can start it again has to know that it has stopped."""
        return self._ranks.first or super()._expects_reply(server)

    async def _is_alive(self, server: VllmServer) -> bool:
        """A token of ours would wait behind all replies of others: where only they ask, it is enough that it speaks."""
        return await super()._is_alive(server) if server.busy else await server.is_healthy(ANSWER_S)

    def _may_return(self, server: VllmServer) -> bool:
        """The first rank knows, and ends the run where none does."""
        return super()._may_return(server) if self._ranks.first else True
