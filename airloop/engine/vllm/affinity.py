"""Which server a request goes to."""

from __future__ import annotations

from collections.abc import Sequence

from airloop.engine.vllm.server import VllmServer

AFFINITY_SLACK = 8  # requests more than another server has, before a conversation leaves the one that has it cached
AFFINITY_CACHE = 65536  # conversations whose server is remembered


class Affinity:
    """Sticky: the server that has a conversation cached; else the one with the least load."""

    def __init__(self) -> None:
        self._servers: dict[str, VllmServer] = {}

    def choose(self, alive: Sequence[VllmServer], order: str) -> VllmServer:
        conversation = order.rpartition("-")[0] or order  # what follows is the number of the turn
        least = min(alive, key=lambda server: server.busy)
        known = self._servers.get(conversation)
        chosen = least
        if known is not None and known in alive and known.busy <= least.busy + AFFINITY_SLACK:
            chosen = known
        if conversation:
            self._servers[conversation] = chosen
            if len(self._servers) > AFFINITY_CACHE:
                self._servers.pop(next(iter(self._servers)))
        return chosen
