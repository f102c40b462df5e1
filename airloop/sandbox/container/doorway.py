"""The door of a container: a socket of ours that is shown inside, and a process inside that carries to it what comes to
a port of the container's own loopback. The container itself has no network."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from airloop.errors import AirError
from airloop.sandbox.base import START_S, StartTimeout
from airloop.sandbox.bubblewrap.runtime import RuntimeDirectory
from airloop.sandbox.container import request
from airloop.sandbox.container.docker_api import STDOUT, Engine, Stream
from airloop.sandbox.passage import Passage

PLACE = "/opt/air/door"  # inside
FORWARDER = Path(__file__).with_name("forwarder.py")
# -I: what the agent may have put beside it is not imported. 127 as of shells: there is no such program.
START = 'for python in python3 python; do command -v $python >/dev/null && exec $python -I -c "$@"; done; exit 127'


class Doorway:
    """`bind` belongs to the container's binds; `open` once it runs."""

    def __init__(self) -> None:
        self._runtime = RuntimeDirectory()  # nobody else's; what is shown of it is for all inside
        shown = self._runtime.sandbox("door")
        shown.chmod(0o755)
        self._path = shown / "socket"
        self.bind = (str(shown), PLACE)
        self._stream: Stream | None = None
        self.passage: Passage | None = None

    async def open(self, engine: Engine, container: str, image: str, port: int) -> Passage:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._path))
        os.chmod(self._path, 0o777)
        self.passage = await Passage.start(listening)
        command = ["sh", "-c", START, "start", FORWARDER.read_text(encoding="utf-8"), str(port), f"{PLACE}/socket"]
        _, self._stream = await engine.start_exec(container, command, request.USER)
        said = b""
        try:
            async with asyncio.timeout(START_S):
                while (frame := await self._stream.frame()) is not None:
                    if frame[0] == STDOUT:
                        return self.passage
                    said += frame[1]
        except TimeoutError as error:
            raise StartTimeout(f"the container's door did not open within {START_S:g} s") from error
        words = said.decode(errors="replace").strip().splitlines()[-1:]
        raise AirError(
            f"In the image {image} nothing can lead agents to the policy: {words[0] if words else 'it has no Python'}.",
            "build one with python3; it carries what agents ask out of a container without a network.",
        )

    def close(self) -> None:
        if self.passage is not None:
            self.passage.close()
        if self._stream is not None:
            self._stream.close()
        self.remove()

    def remove(self) -> None:
        self._runtime.remove()
