"""The files of a sandbox made by bubblewrap, by the door that moves them."""

from __future__ import annotations

import itertools
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airloop.sandbox.base import HOME, WORKSPACE, Sandbox, Snapshot, inside
from airloop.sandbox.door.doorkeeper import FILES_LIMIT, Facts, archive


class SandboxFiles(Sandbox):
    @abstractmethod
    async def _ask(self, op: str, facts: Facts, payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """The door's answer, of this sandbox."""

    async def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self._ask("put", {}, archive([(inside(path), content, mode)]))

    async def get(self, path: str, limit_bytes: int = 256 << 20) -> bytes | None:
        return (await self.get_many([path], limit_bytes, limit_bytes))[0]

    async def get_many(self, paths: Sequence[str], limit_bytes: int, total_bytes: int) -> list[bytes | None]:
        asked = {"paths": [inside(path) for path in paths], "limit": limit_bytes, "total": total_bytes}
        facts, content = await self._ask("get", asked)
        sizes = facts["sizes"]
        ends = itertools.accumulate(size or 0 for size in sizes)
        return [None if size is None else content[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    async def list(self, pattern: str) -> list[str]:
        _, found = await self._ask("list", {"root": WORKSPACE, "pattern": pattern, "limit": 10_000})
        return [str(name) for name in json.loads(found)]

    async def snapshot(self) -> Snapshot:
        limit = min(FILES_LIMIT, self.image.limits.disk_mb << 20)
        return Snapshot(replace(self.image, files=()), await self._packed(HOME, limit))

    async def pack(self, limit_bytes: int) -> bytes:
        return await self._packed(WORKSPACE, limit_bytes)

    async def _packed(self, place: str, limit: int) -> bytes:
        skip = [to for _, to in self.image.binds]
        return (await self._ask("pack", {"paths": [place], "skip": skip, "limit": limit}))[1]
