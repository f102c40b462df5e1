"""What BeautifulSoup tasks cost: a call of run_python, whole episodes, and a crowd of them.

    python bench/soup.py                  the table (about a minute)
    python bench/soup.py --episodes 256   only this many episodes at once, on 32 sandboxes

Times are of this machine, whose load is printed: with other work on its cores they are those of the other work too.
Bar: a call of run_python 10 ms, median, on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import date

from airloop.rollout.episode import run_episode
from airloop.types import Task
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.env import SoupEnv
from airloop_envs.soup.generate import KINDS, SEEDS, generate
from airloop_envs.soup.sandbox_pool import SandboxPool, image
from airloop_envs.soup.spec import LEVELS

CALLS = 100
START = "import time\nbegin = time.perf_counter()\n"
PARSE = 'make_soup()\nprint(round((time.perf_counter() - begin) * 1e3, 2), end="")'


async def timed(work: Callable[[], Awaitable[object]], times: int = CALLS) -> list[float]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def row(name: str, seconds: list[float], bar: str = "") -> None:
    p95 = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    print(f"{name:<52} {statistics.median(seconds) * 1e3:8.2f} {p95 * 1e3:8.2f}   {bar}")


async def table() -> None:
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {date.today()}; milliseconds: median, 95 %")
    sandbox_pool = SandboxPool.open(SoupArgs(sandboxes=4), image(512, 10))
    begin = time.perf_counter()
    first = generate(next(iter(KINDS)), 0)
    await sandbox_pool.run("bench", first, first.pages["/"], "print(1)", 10)
    print(f"from nothing to the first result: {time.perf_counter() - begin:.2f} s")
    page = first.pages["/"]
    row("run_python: print(1)", await timed(lambda: sandbox_pool.run("bench", first, page, "print(1)", 10)), "10")
    for level in LEVELS:
        kind = next(name for name in KINDS if KINDS[name].level == level)
        task = generate(kind, 0)
        page = task.pages["/"]
        said = await sandbox_pool.run("bench", task, page, START + PARSE, 10)
        parsing = f"{len(page)} characters, parsed in {said.output} ms"
        code = task.recipe[0].code
        seconds = await timed(lambda t=task, p=page, c=code: sandbox_pool.run("bench", t, p, c, 10), 40)  # type: ignore[misc]
        row(f"run_python: the oracle's code, {level}", seconds, parsing)
    await sandbox_pool.close()
    begin = time.perf_counter()
    made = [generate(kind, seed) for seed in SEEDS["train"][:5] for kind in KINDS if KINDS[kind].level == "primer"]
    print(f"tasks made: {len(made) / (time.perf_counter() - begin):.0f} a second (primer)")
    env = SoupEnv(SoupArgs(num_examples_per_kind=1000))
    begin = time.perf_counter()
    listed = len(env.tasks("train"))
    print(f"tasks listed: {listed / (time.perf_counter() - begin):.0f} a second")


async def crowd(count: int) -> None:
    """The oracle's episodes, all at once."""
    env = SoupEnv(SoupArgs(difficulty="easy"))
    tasks: list[Task] = list(env.tasks("train"))[:count]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    played = await asyncio.gather(*(run_episode(env, t, env.scripted("oracle", t, 0), id=t.id, seed=0) for t in tasks))
    seconds = time.perf_counter() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    most = env.sandbox_pool().most
    await env.close()
    done = sum(t.ending == "done" for t in played)
    passed = sum(t.metrics["passed"] for t in played if t.ending == "done")
    print(
        f"{count} episodes at once: {seconds:.1f} s, {seconds / count * 1e3:.0f} ms each; {done} ended by themselves, "
        f"{passed:.0f} passed; at most {most} sandboxes, {grown:.0f} MiB more memory here"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=0, help="only this many episodes at once")
    chosen = parser.parse_args()
    asyncio.run(crowd(chosen.episodes) if chosen.episodes else table())


if __name__ == "__main__":
    main()
