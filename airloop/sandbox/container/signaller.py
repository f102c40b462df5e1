"""Signals to processes in a container, sent by a process that waits inside it (SIGNALLER of request.py)."""

from __future__ import annotations

import asyncio
import time

from airloop.errors import InfraError
from airloop.sandbox.container import request
from airloop.sandbox.container.docker_api import STDOUT, Engine, Stream

SIGNAL_S = 5.0
TICKS = 100  # per second in /proc, on every Linux


class Signaller:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        # The clock inside showed `_uptime` when ours showed `_at` or a little less: so no start is dated too late.
        self._uptime = 0.0
        self._at = 0.0

    @classmethod
    async def start(cls, engine: Engine, container: str, patience: float | None = None) -> Signaller:
        """`patience`: seconds that a busy machine may take, where there is no agent yet who could make it wait."""
        _, stream = await engine.start_exec(container, ["bash", "-c", request.SIGNALLER], request.USER)
        signaller = cls(stream)
        try:
            said = await signaller._answer(SIGNAL_S if patience is None else patience)
            signaller._uptime, signaller._at = float(said), time.monotonic()
        except (ValueError, InfraError, TimeoutError) as error:
            stream.close()
            raise InfraError(f"no process could be started in the container: {error}") from error
        return signaller

    async def send(self, how: str, since: float, shell: int) -> None:
        """To processes that are not older than `since`, a time of our monotonic clock (0: all of them)."""
        first = max(int((self._uptime + since - self._at) * TICKS) - 2, 0) if since else 0
        self._stream.write(f"{how} {first} {shell}\n".encode())
        await self._answer(SIGNAL_S)

    async def _answer(self, patience: float) -> str:
        async with asyncio.timeout(patience):
            while (frame := await self._stream.frame()) is not None:
                if frame[0] == STDOUT:
                    return frame[1].decode(errors="replace").strip()
        raise InfraError("the process that sends signals has ended")

    def close(self) -> None:
        self._stream.close()
