"""Where agents' code runs: a bounded number of sandboxes, whatever the number of episodes.

`run_python` keeps nothing between calls, so an episode does not need its sandbox while its agent thinks. It keeps it
until another episode has none and the bound is reached: then the sandbox that has been idle longest is ended, and its
episode gets a fresh one with its next call. Nobody holds anything while waiting, so no order of episodes can
deadlock; a sandbox never serves two episodes.

That a call leaves nothing is the work of a filter of system calls (quiet.py). Where it cannot be had, which is tried
once, every call has a fresh sandbox: slower, and it sees the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections import OrderedDict
from pathlib import Path

from airloop.errors import InfraError
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import Image, Limits, Result, SandboxLost
from airloop.sandbox.pool import Lease, Pool
from airloop_envs.soup import quiet
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.spec import SoupTask

log = logging.getLogger("airloop.envs.soup.sandbox_pool")  # among the environments': a run shows them

SOURCE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
PACKAGES = ("beautifulsoup4", "lxml", "html5lib")
MODULES = ("bs4", "lxml", "html5lib")  # what they are imported as
PRELOAD = (
    *("json", "re", "collections", "itertools", "functools", "math", "datetime", "decimal", "statistics", "string"),
    *("html", "html.parser", "html.entities", "urllib.parse", "traceback", "linecache", "unicodedata", "textwrap"),
    *("bs4", "soupsieve", "lxml.etree", "lxml.html", "html5lib"),
)
# BeautifulSoup, its parsers and its selectors put a lot off until they are first used: 35 ms to build a soup, 150 ms
# to select. Done once, before any agent's process is forked.
REHEARSAL = """
import json, traceback
from bs4 import BeautifulSoup
PAGE = '<!doctype html><html lang="en"><head><title>T</title><meta charset="utf-8"><style>p {}</style></head><body>' \\
    '<div id="a" class="x y"><p class="x">One &amp; <a href="/b">two</a><br><img src="i.png"></p><!-- c --></div>' \\
    '<table><tr><th>H</th><td>1</td></tr></table><ul><li>1<li>2</ul><form><input name="n"></form></body></html>'
for parser in ("html.parser", "lxml", "html5lib"):
    soup = BeautifulSoup(PAGE, parser)
    soup.select("div > p.x, ul li:nth-of-type(2), a[href^='/'], tr + tr, h1 ~ p, #a:not(.z) :is(p, b):has(a)")
    soup.find_all("p", class_="x"), soup.find("a", string="two"), soup.find(id="a"), soup.find_all(["th", "td"])
    soup.find("p").find_next_siblings(), soup.find("a").find_parent("div"), soup.find("li").find_next("li")
    soup.get_text(" ", strip=True), str(soup), soup.prettify(), list(soup.stripped_strings), soup.find("a").attrs
json.loads(json.dumps({"a": [1, 2.5, None, "é"]}, ensure_ascii=False))
try:
    raise ValueError("rehearsed")
except ValueError:
    traceback.format_exc()
"""
# What no call may do. Run once, before any agent's code.
TRIAL = "import os\ntry:\n    os.mkdir('trial')\nexcept PermissionError:\n    print('quiet')"
TRIAL_S = 30.0
STANDBY = 2  # sandboxes kept ready beside those in use
ATTEMPTS = 3  # to run one call: it has no state, so another sandbox does as well
LOST = "[the code ended the machine it ran on]"


def image(memory_mb: int, timeout_s: float, container: str = "") -> Image:
    """No file can be written (a file's size is at most 0): what a call leaves behind would last or not by chance."""
    limits = Limits(memory_mb, processes=32, file_mb=0, disk_mb=4, cpu_s=int(timeout_s) + 2, output_bytes=400_000)
    return Image(limits=limits, container=container)


class SandboxPool:
    """`size` sandboxes at most, of which two for each core run code; waiting for a turn is no part of a call's time."""

    def __init__(self, pool: Pool, start: Image, size: int) -> None:
        self.pool = pool
        self.start = start
        self.size = size
        self.busy = 0
        self.most = 0  # sandboxes that were in use at one time
        self._turns = asyncio.Semaphore(min(size, 2 * (os.cpu_count() or 1)))
        self._rules: str | None = None  # the filter that calls run under; "" where there is none; None: not tried yet
        self._idle: OrderedDict[object, Lease] = OrderedDict()  # by their episode, the longest idle first

    @classmethod
    def open(cls, args: SoupArgs, start: Image) -> SandboxPool:
        backend = make_backend(
            args.sandbox, args.python, PACKAGES, PRELOAD, REHEARSAL, syscalls=args.syscalls,
            runtime=args.container_runtime,
        )  # fmt: skip
        size = args.sandboxes
        return cls(Pool(backend, standby=min(STANDBY, size), most=size), start, size)

    async def run(self, episode: object, task: SoupTask, page: str, code: str, timeout: float) -> Result:
        """The code on this page. What the agent breaks is told in the result; InfraError is the machine's."""
        given = {"html": page, "query": task.query, "constraints": task.constraints, "code": code}
        async with self._turns:
            for attempt in range(1, ATTEMPTS + 1):
                lease = await self._take(episode)
                kept = False
                try:
                    rules = await self._tried(lease) if self._rules is None else self._rules
                    result = await lease.python(SOURCE, json.dumps({**given, "rules": rules}).encode(), timeout)
                    kept = bool(rules)
                    return result
                except SandboxLost:
                    return Result(LOST, 1, "", 0.0)
                except InfraError:
                    if attempt == ATTEMPTS:
                        raise
                finally:
                    await self._give_back(episode, lease, kept)
        raise AssertionError("the last attempt returns or raises")

    async def _tried(self, lease: Lease) -> str:
        """Whether the filter works where agents' code runs: asked there, as a container may refuse it."""
        rules = base64.b64encode(quiet.program() or b"").decode()
        given = {"html": "", "query": "", "constraints": "", "code": TRIAL, "rules": rules}
        said = await lease.python(SOURCE, json.dumps(given).encode(), TRIAL_S)
        if said.output != "quiet\n":
            log.warning("no filter of system calls can be had in this sandbox: every call of run_python has its own")
            rules = ""
            await lease.restore()
        self._rules = rules
        return rules

    async def _take(self, episode: object) -> Lease:
        self.busy += 1
        try:
            if (own := self._idle.pop(episode, None)) is not None:
                return own
            while self.busy + len(self._idle) > self.size:
                _, oldest = self._idle.popitem(last=False)
                await oldest.close()
            self.most = max(self.most, self.busy + len(self._idle))
            return await self.pool.lease(self.start)
        except BaseException:
            self.busy -= 1
            raise

    async def _give_back(self, episode: object, lease: Lease, kept: bool) -> None:
        self.busy -= 1
        if kept:
            self._idle[episode] = lease
        else:
            await lease.close()

    async def leave(self, episode: object) -> None:
        """The episode is over, and so is its sandbox."""
        lease = self._idle.pop(episode, None)
        if lease is not None:
            await lease.close()

    async def close(self) -> None:
        await self.pool.close()
