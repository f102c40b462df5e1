"""What a sandbox costs: lease, command, reset, python; and whether a thousand episodes leave anything behind.

    python bench/sandbox.py            the table (about a minute)
    python bench/sandbox.py --episodes 1000

Times are medians on this machine, of which date and core count are printed. Bars: warm lease 5 ms, cold 60 ms,
`true` 3 ms, freezing 2 ms, reset 20 ms, 64 leases at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path

from airloop.sandbox import processes
from airloop.sandbox.base import Image, Sandbox
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.pool import Pool

IMPORTS = "import numpy, pandas\nfrom sklearn.ensemble import RandomForestClassifier\nprint('ok')\n"
IMAGE = Image(files=(("imports.py", IMPORTS.encode(), 0o644), ("notes.txt", b"x" * 50_000, 0o644)))


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def row(name: str, seconds: list[float], bar: str) -> None:
    ordered = sorted(seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    print(f"{name:<34} {statistics.median(seconds) * 1e3:9.2f} {p95 * 1e3:9.2f}   {bar}")


async def table() -> None:
    backend = Bubblewrap()
    pool = Pool(backend, standby=2)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {date.today()}; milliseconds: median, 95 %, bar")

    first = await backend.start(IMAGE)
    await wait_for_warm_python(first)  # it imports for seconds, once, on one of the cores
    await first.close()
    starts = []
    for _ in range(30):
        begin = time.perf_counter()
        sandbox = await backend.start(IMAGE)
        starts.append(time.perf_counter() - begin)
        await sandbox.close()
    row("cold lease", starts, "60")

    warm = []
    for _ in range(100):
        await pool.warm(IMAGE)
        begin = time.perf_counter()
        lease = await pool.lease(IMAGE)
        warm.append(time.perf_counter() - begin)
        await lease.close()
    row("warm lease", warm, "5")

    async with await pool.lease(IMAGE) as lease:
        row("`true` in a leased shell", await timed(lambda: lease.run("true", 5), 300), "3")
        row("`/bin/true` in a leased shell", await timed(lambda: lease.run("/bin/true", 5), 300), "3")
        await lease.run("for i in 1 2 3 4; do (while :; do :; done) & done", 5)
        row("freezing four busy processes", await freezings(lease.sandbox, 100), "2")
        await lease.run("kill -9 $(jobs -p)", 5)
        resets = []
        for _ in range(50):
            await lease.run("echo x > changed; cd /tmp", 5)
            await pool.warm(IMAGE)
            begin = time.perf_counter()
            await lease.restore()
            resets.append(time.perf_counter() - begin)
        row("reset, with a sandbox standing by", resets, "20")
        snapshot = await lease.snapshot()
        row("snapshot", await timed(lease.snapshot, 30), "")
        row("restore of a snapshot, warm or not", await timed(lambda: lease.restore(snapshot), 30), "20")
        await wait_for_warm_python(lease.sandbox)
        row("python imports.py, warm", await timed(lambda: lease.run("python imports.py", 30), 30), "")
        real = f"{backend.interpreter.executable} imports.py"
        row("python imports.py, cold", await timed(lambda: lease.run(real, 60), 5), "")

    begin = time.perf_counter()
    leases = await asyncio.gather(*(pool.lease(IMAGE) for _ in range(64)))
    print(f"64 leases at once: {time.perf_counter() - begin:.2f} s, from {pool.counts['warm']} warm ones so far")
    begin = time.perf_counter()
    results = await asyncio.gather(*(lease.run(f"echo {i}", 20) for i, lease in enumerate(leases)))
    assert [r.output for r in results] == [f"{i}\n" for i in range(64)]
    print(f"one command in each of the 64: {time.perf_counter() - begin:.3f} s")
    await pool.close()


async def freezings(sandbox: Sandbox, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        async with sandbox.frozen():
            seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(0.01)
    return seconds


async def wait_for_warm_python(sandbox: object) -> None:
    warming = getattr(sandbox, "_warming", None)
    if warming is not None:
        await warming


def left_behind() -> dict[str, int]:
    mounts = len(Path("/proc/self/mounts").read_text().splitlines())
    groups = sum(1 for _ in Path("/sys/fs/cgroup").glob("**/air-*"))
    files = sum(1 for _ in Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp").glob(f"air-{os.getuid()}/*/worlds/*"))
    ours = [pid for pid in processes.all_pids() if _parent(pid) == os.getpid()]
    return {"processes": len(ours), "mounts": mounts, "control groups": groups, "files": files}


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[1])


async def episodes(count: int) -> None:
    """A thousand short lives in a row, each with a background process it never ends."""
    before = left_behind()
    pool = Pool(Bubblewrap(), standby=2)
    begin = time.perf_counter()
    for i in range(count):
        async with await pool.lease(IMAGE) as lease:
            await lease.run("(setsid sleep 1000 &) ; echo hello > /tmp/x; mkdir -p a/b/c; cat notes.txt | wc -c", 10)
            if i % 10 == 0:
                await lease.run("python -c 'print(1)'", 10)
    seconds = time.perf_counter() - begin
    await pool.close()
    after = left_behind()
    print(f"{count} episodes in {seconds:.1f} s, {seconds / count * 1e3:.1f} ms each")
    for kind in before:
        print(f"  {kind}: {before[kind]} before, {after[kind]} after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=0, help="only this many episodes in a row")
    chosen = parser.parse_args()
    asyncio.run(episodes(chosen.episodes) if chosen.episodes else table())


if __name__ == "__main__":
    main()
