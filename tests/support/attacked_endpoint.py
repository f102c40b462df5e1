"""An endpoint in a process of its own, for tests that attack it over sockets.

Run as a program it serves two episodes, prints where, and tells what became of them for each line that it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTEXT = 4096
ENDPOINT_TIMEOUT_S = 2.0  # in place of the endpoint's own: for heads, for answers that nobody takes
ENDPOINT_BODY_S = 10.0  # for bodies: honest ones of megabytes are sent beside other tests
PATH = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
LONG = "at length"  # asked so, the policy says more
TIMEOUT_S = 60.0  # of a busy machine; nothing here takes that long


class Attacked:
    """The endpoint's process, as attackers and honest clients see it."""

    def __init__(self, folder: Path, parser: str) -> None:
        self.log = folder / "log.txt"
        tests = Path(__file__).resolve().parents[1]
        places = [str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.attacked_endpoint", parser],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            )
        told = self._read()
        self.port: int = told["port"]
        self.keys: dict[str, str] = told["keys"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)  # type: ignore[no-any-return]

    def counts(self) -> dict[str, Any]:
        """Of each episode: replies, requests, those that were given up; and the connections that are open."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=TIMEOUT_S)
        self.process.stdout.close()

    @property
    def memory(self) -> int:
        """The most that the process has held so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def head(
        self, *more: str, episode: str = "one", key: str | None = None, length: int | None = len(BODY), path: str = PATH
    ) -> bytes:
        """Of a request, up to the empty line."""
        own = self.keys[episode] if key is None else key
        lines = [f"POST /e/{episode}{path} HTTP/1.1", "Host: policy", f"Authorization: Bearer {own}", *more]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def ask(self, request: bytes) -> list[tuple[int, bytes]]:
        """Sends it on a connection of its own, says that it was all, and reads statuses and bodies to the end."""
        with self.connect() as line:
            line.sendall(request)
            return read_answers(line)

    def honest(self, episode: str = "one") -> None:
        """Somebody asks as one should, and is answered."""
        ((status, body),) = self.ask(self.head("Connection: close", episode=episode) + BODY)
        assert status == 200 and json.loads(body)["choices"][0]["message"]["content"], body


def read_answers(line: socket.socket) -> list[tuple[int, bytes]]:
    """All that come until the other side hangs up; a reset is its end too."""
    held = b""
    while True:
        try:
            got = line.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            got = b""
        if not got:
            break
        held += got
    found = []
    while held:
        head, _, rest = held.partition(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next((int(f.partition(b":")[2]) for f in fields if f.startswith(b"content-length:")), len(rest))
        found.append((int(head.split()[1]), rest[:length]))
        held = rest[length:]
    return found


async def main(parser: str) -> None:
    if parser == "h11":
        sys.modules["httptools"] = None  # type: ignore[assignment]  # as if it were not installed
    from support.rollout_world import ScriptedEngine, chat_tokenizer

    from airloop.engine.base import Sampling
    from airloop.serve import app, connections, request_limits
    from airloop.serve.episode import ServedEpisode
    from airloop.serve.server import serving

    assert connections.Connection.__module__ == f"airloop.serve.by_{parser}"
    connections.TIMEOUT_S, request_limits.BODY_S = ENDPOINT_TIMEOUT_S, ENDPOINT_BODY_S
    chat, endpoint = chat_tokenizer(), app.Endpoint("tiny")
    engine = ScriptedEngine(chat, lambda prompt, seed: "yes " * (12 if LONG in prompt else 1), context=CONTEXT)
    episodes = {id: ServedEpisode(engine, chat, Sampling(50), seed=1, order=id) for id in ("one", "two")}  # type: ignore[arg-type]
    keys = {id: endpoint.open(id, episode) for id, episode in episodes.items()}

    def tell(**said: Any) -> None:
        print(json.dumps(said), flush=True)

    async with serving(endpoint.app()) as url:
        tell(port=int(url.rpartition(":")[2]), keys=keys)
        while await asyncio.to_thread(sys.stdin.readline):
            of_each = {
                id: {"replies": len(e.forest.replies), "requests": e.requests, "abandoned": e.abandoned}
                for id, e in episodes.items()
            }
            tell(**of_each, files=len(os.listdir("/proc/self/fd")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
