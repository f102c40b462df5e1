"""What the endpoint adds to the time of an engine that answers in 50 ms: clients in another process, over sockets.

    python bench/serve.py                      # 64 clients, each asking again as soon as it is answered
    python bench/serve.py --clients 64 --think 0.5 --turns 8

Printed: milliseconds more than the engine took, at the median and at 99 %, and the processor's time for a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import time
from typing import Any

from airloop.engine.base import Generation, Limits, Sampling
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.serve.app import Endpoint
from airloop.serve.episode import ServedEpisode
from airloop.serve.server import serving

REPLY = "I have looked at it, and it is there."


class SlowEngine:
    """Answers after so long, and does nothing else."""

    version = 0

    def __init__(self, tokenizer: ChatTokenizer, seconds: float) -> None:
        self._ids = (*tokenizer.encode(REPLY), tokenizer.stop_ids[0])
        self._seconds = seconds

    async def generate(self, token_ids: Any, sampling: Sampling, order: str = "") -> Generation:
        await asyncio.sleep(self._seconds)
        return Generation(self._ids, (-0.5,) * len(self._ids), "stop", 0)

    def describe(self) -> Limits:
        return Limits(1 << 20, 64, 0)


async def ask(reader: Any, writer: Any, path: str, key: str, body: bytes) -> dict[str, Any]:
    head = f"POST {path} HTTP/1.1\r\nhost: policy\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert " 200 " in said.splitlines()[0], said
    length = int(said.partition("content-length:")[2].split("\r\n")[0])
    return json.loads(await reader.readexactly(length))  # type: ignore[no-any-return]


async def live(number: int, port: int, key: str, turns: int, until: float, think: float, times: list[float]) -> None:
    """Conversations of so many turns, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(think * number / 64)
    while time.monotonic() < until:
        messages = [{"role": "user", "content": f"Where is it, {number}? " * 20}]
        for _ in range(turns):
            body = json.dumps({"model": "m", "messages": messages}).encode()
            began = time.perf_counter()
            answer = await ask(reader, writer, f"/e/{number}/v1/chat/completions", key, body)
            times.append(time.perf_counter() - began)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "Are you sure of that?"}]
            await asyncio.sleep(think)
    writer.close()


def clients(port: int, keys: list[str], turns: int, seconds: float, think: float, into: Any) -> None:
    async def all_of_them() -> list[float]:
        until, times = time.monotonic() + seconds, list[float]()
        await asyncio.gather(*(live(i, port, key, turns, until, think, times) for i, key in enumerate(keys)))
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
        work = (port, keys, options.turns, options.seconds, options.think, there)
        process = multiprocessing.get_context("spawn").Process(target=clients, args=work)
        process.start()
        busy = time.process_time()
        times: list[float] = await asyncio.to_thread(here.recv)
        busy = time.process_time() - busy
        process.join()
    more = sorted(1000 * (seconds - options.engine) for seconds in times)
    what = f"{options.clients} clients, {options.turns} turns, think {options.think:g} s, engine {options.engine:g} s"
    high = more[int(0.99 * len(more))]
    print(
        f"{what} on {platform.machine()}: {len(more)} requests, p50 +{statistics.median(more):.1f} ms, "
        f"p99 +{high:.1f} ms, {1000 * busy / len(more):.2f} ms of a processor each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--think", type=float, default=0.0, help="seconds between a reply and the next request")
    parser.add_argument("--engine", type=float, default=0.05, help="seconds that the engine takes")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
