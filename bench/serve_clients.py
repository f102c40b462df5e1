"""The clients of bench/serve.py, in a process of their own: the endpoint's processor is not theirs.

The work comes as JSON on the standard input, the times of all requests leave as JSON. Nothing of airloop is imported,
so that they are there at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


async def ask(reader: Any, writer: Any, path: str, key: str, body: bytes) -> tuple[str, float]:
    """What it said, and when the first of it came."""
    head = f"POST {path} HTTP/1.1\r\nhost: policy\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if " 200 " not in said.splitlines()[0]:
        raise RuntimeError(f"the endpoint refused a request: {said}")
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


async def live(number: int, work: dict[str, Any], until: float, times: list[list[float]]) -> None:
    """Conversations of so many turns, one after the other, and one at least; `times` of each request, to its first word
    and its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", work["port"])
    path, key = f"/e/{number}/v1/chat/completions", work["keys"][number]
    await asyncio.sleep(work["think"] * number / 64)
    while True:
        messages = [{"role": "user", "content": f"Where is it, {number}? " * 20}]
        for _ in range(work["turns"]):
            body = json.dumps({"model": "m", "messages": messages, "stream": work["stream"]}).encode()
            began = time.perf_counter()
            said, first = await ask(reader, writer, path, key, body)
            times.append([first - began, time.perf_counter() - began])
            reply = {"role": "assistant", "content": said}
            messages += [reply, {"role": "user", "content": "Are you sure of that?"}]
            await asyncio.sleep(work["think"])
        if time.monotonic() >= until:
            break
    writer.close()


async def all_of_them(work: dict[str, Any]) -> list[list[float]]:
    until, times = time.monotonic() + work["seconds"], list[list[float]]()
    await asyncio.gather(*(live(i, work, until, times) for i in range(len(work["keys"]))))
    return times


if __name__ == "__main__":
    json.dump(asyncio.run(all_of_them(json.load(sys.stdin))), sys.stdout)
