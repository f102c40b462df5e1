"""What the endpoint adds to the time of an engine that answers in 50 ms: clients in another process, over sockets.

    python bench/serve.py                      # 64 clients, each asking again as soon as it is answered
    python bench/serve.py --clients 64 --think 0.5 --turns 8
    python bench/serve.py --stream --engine 1    # the engine draws its tokens one by one, and clients listen

Printed: milliseconds more than the engine took, at the median and at 99 %, and the processor's time for a request; of
streams also how much later than the engine's first token the first of the text comes. And the same of a bare socket in
the endpoint's place, which answers after the engine's time with as many bytes: so long the clients wait for themselves,
for the timer, and for other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airloop.engine.base import Counters, EngineDowntime, Generation, Limits, Sampling, TokenCallback
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.serve.server import serving

REPLY = "I have looked at it, and it is there."
ANSWER = json.dumps({"choices": [{"message": {"content": REPLY}}], "pad": "." * 300}).encode()  # as long as a real one
BARE_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
CLIENTS = Path(__file__).with_name("serve_clients.py")


class SlowEngine:
    """Answers after so long, and does nothing else. Who listens hears of its tokens at even times until then."""

    version, fallback_reason, in_place = 0, "", False

    def __init__(self, tokenizer: ChatTokenizer, seconds: float) -> None:
        self.counters, self.downtime = Counters(), EngineDowntime()
        self._ids = (*tokenizer.encode(REPLY), tokenizer.stop_ids[0])
        self._seconds = seconds

    @property
    def first(self) -> float:
        """Seconds to its first token."""
        return self._seconds / len(self._ids)

    async def generate(
        self, token_ids: Any, sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        began = time.monotonic()
        for i, token in enumerate(self._ids if on_tokens else ()):
            await asyncio.sleep(began + (i + 1) * self.first - time.monotonic())
            on_tokens([token])  # type: ignore[misc]
        await asyncio.sleep(began + self._seconds - time.monotonic())
        return Generation(self._ids, (-0.5,) * len(self._ids), "stop", 0)

    def describe(self) -> Limits:
        return Limits(1 << 20, 64, 0)


async def measure(options: argparse.Namespace) -> None:
    tokenizer = ChatTokenizer(tiny_tokenizer(), name="tiny")
    engine, endpoint = SlowEngine(tokenizer, options.engine), Endpoint("tiny")
    keys = []
    for number in range(options.clients):
        episode = ServedEpisode(engine, tokenizer, Sampling(256), seed=number, order=str(number))  # type: ignore[arg-type]
        keys.append(endpoint.open(str(number), episode))
    work = {"keys": keys, **{name: getattr(options, name) for name in ("turns", "seconds", "think", "stream")}}
    async with serving(endpoint.app()) as url:
        busy = time.process_time()
        times = await asyncio.to_thread(ask_all, {**work, "port": int(url.rpartition(":")[2])})
        busy = time.process_time() - busy
    bare = [whole for _, whole in await ask_bare(work, options.engine)]
    firsts, wholes = zip(*times, strict=True)
    what = f"{options.clients} clients, {options.turns} turns, think {options.think:g} s, engine {options.engine:g} s"
    each = f"{1000 * busy / len(times):.2f} ms of a processor each"
    print(f"{what} on {platform.machine()}: {len(times)} requests, {above(wholes, options.engine)}, {each}")
    print(f"a bare socket in its place: {len(bare)} requests, {above(bare, options.engine)}")
    if options.stream:
        print(f"first text: {above(firsts, engine.first)} after the engine's first token")


class BareSocket(asyncio.Protocol):
    """Answers each request after so long with the same bytes, and reads nothing of it but its length."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._received = seconds, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.rpartition(b"content-length: ")[2]):
            self._received = b""
            asyncio.get_running_loop().call_later(self._seconds, self._transport.write, BARE_ANSWER)


async def ask_bare(work: dict[str, Any], engine: float) -> list[list[float]]:
    server = await asyncio.get_running_loop().create_server(lambda: BareSocket(engine), "127.0.0.1", 0)
    async with server:
        whole = {**work, "port": server.sockets[0].getsockname()[1], "stream": False}
        return await asyncio.to_thread(ask_all, whole)


def ask_all(work: dict[str, Any]) -> list[list[float]]:
    """Seconds of each request of the clients, to the first of its text and to its end."""
    done = subprocess.run([sys.executable, str(CLIENTS)], input=json.dumps(work).encode(), stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit("the clients failed, as they say above")
    found: list[list[float]] = json.loads(done.stdout)
    return found


def above(seconds: Sequence[float], engine: float) -> str:
    more = sorted(1000 * (each - engine) for each in seconds)
    return f"p50 +{statistics.median(more):.1f} ms, p99 +{more[int(0.99 * len(more))]:.1f} ms"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--think", type=float, default=0.0, help="seconds between a reply and the next request")
    parser.add_argument("--stream", action="store_true", help="clients that listen while the reply is made")
    parser.add_argument("--engine", type=float, default=0.05, help="seconds that the engine takes")
    asyncio.run(measure(parser.parse_args(words)))


if __name__ == "__main__":
    main()
