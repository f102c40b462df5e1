"""What the endpoint adds to the time of an engine that answers in 50 ms: clients in another process, over sockets.

    python bench/serve.py                      # 64 clients, each asking again as soon as it is answered
    python bench/serve.py --clients 64 --think 0.5 --turns 8
    python bench/serve.py --stream --engine 1    # the engine draws its tokens one by one, and clients listen

Printed: milliseconds more than the engine took, at the median and at 99 %, and the processor's time for a request; of
streams also how much later than the engine's first token the first of the text comes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

from airloop.engine.base import Generation, Limits, Sampling, TokenCallback
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.serve.server import serving

REPLY = "I have looked at it, and it is there."


class SlowEngine:
    """Answers after so long, and does nothing else. Who listens hears of its tokens at even times until then."""

    version = 0

    def __init__(self, tokenizer: ChatTokenizer, seconds: float) -> None:
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


async def ask(reader: Any, writer: Any, path: str, key: str, body: bytes) -> tuple[str, float]:
    """What it said, and when the first of it came."""
    head = f"POST {path} HTTP/1.1\r\nhost: policy\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert " 200 " in said.splitlines()[0], said
    if "chunked" in said:
        return await listen(reader)
    length = int(said.partition("content-length:")[2].split("\r\n")[0])
    answer = json.loads(await reader.readexactly(length))
    return answer["choices"][0]["message"]["content"], time.perf_counter()


async def listen(reader: Any) -> tuple[str, float]:
    text, first, line = "", 0.0, b""
    while line != b"0\r\n":
        line = await reader.readline()
        if line.startswith(b"data: {"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            first = first or time.perf_counter()
    await reader.readline()
    return text, first


async def live(
    number: int, port: int, key: str, turns: int, until: float, think: float, stream: bool, times: list[list[float]]
) -> None:
    """Conversations of so many turns, one after the other; `times` of each request, to its first word and its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(think * number / 64)
    while time.monotonic() < until:
        messages = [{"role": "user", "content": f"Where is it, {number}? " * 20}]
        for _ in range(turns):
            body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
            began = time.perf_counter()
            said, first = await ask(reader, writer, f"/e/{number}/v1/chat/completions", key, body)
            times.append([first - began, time.perf_counter() - began])
            reply = {"role": "assistant", "content": said}
            messages += [reply, {"role": "user", "content": "Are you sure of that?"}]
            await asyncio.sleep(think)
    writer.close()


def clients(port: int, keys: list[str], turns: int, seconds: float, think: float, stream: bool, into: Any) -> None:
    async def all_of_them() -> list[list[float]]:
        until, times = time.monotonic() + seconds, list[list[float]]()
        await asyncio.gather(*(live(i, port, key, turns, until, think, stream, times) for i, key in enumerate(keys)))
        return times

    into.send(asyncio.run(all_of_them()))


async def measure(options: argparse.Namespace) -> None:
    tokenizer = ChatTokenizer(tiny_tokenizer(), name="tiny")
    engine, endpoint = SlowEngine(tokenizer, options.engine), Endpoint("tiny")
    keys = []
    for number in range(options.clients):
        episode = ServedEpisode(engine, tokenizer, Sampling(256), seed=number, order=str(number))  # type: ignore[arg-type]
        keys.append(endpoint.open(str(number), episode))
    async with serving(endpoint.app()) as url:
        port = int(url.rpartition(":")[2])
        here, there = multiprocessing.get_context("spawn").Pipe()
        work = (port, keys, options.turns, options.seconds, options.think, options.stream, there)
        process = multiprocessing.get_context("spawn").Process(target=clients, args=work)
        process.start()
        busy = time.process_time()
        times: list[list[float]] = await asyncio.to_thread(here.recv)
        busy = time.process_time() - busy
        process.join()
    firsts, wholes = zip(*times, strict=True)
    what = f"{options.clients} clients, {options.turns} turns, think {options.think:g} s, engine {options.engine:g} s"
    each = f"{1000 * busy / len(times):.2f} ms of a processor each"
    print(f"{what} on {platform.machine()}: {len(times)} requests, {above(wholes, options.engine)}, {each}")
    if options.stream:
        print(f"first text: {above(firsts, engine.first)} after the engine's first token")


def above(seconds: Sequence[float], engine: float) -> str:
    more = sorted(1000 * (each - engine) for each in seconds)
    return f"p50 +{statistics.median(more):.1f} ms, p99 +{more[int(0.99 * len(more))]:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--think", type=float, default=0.0, help="seconds between a reply and the next request")
    parser.add_argument("--stream", action="store_true", help="clients that listen while the reply is made")
    parser.add_argument("--engine", type=float, default=0.05, help="seconds that the engine takes")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
