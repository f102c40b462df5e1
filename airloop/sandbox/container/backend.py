"""Sandboxes that are containers of Docker or Podman, for images that somebody else has built.

The shell runs as the container's first process over the engine's attach stream. Files go in and out through
processes that the engine starts inside, because workspace and home are file systems in memory that only the
container sees. Containers carry a label that says which process made them: what a killed run left is removed by the
next one that starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from airloop.errors import AirError, InfraError
from airloop.sandbox.base import Backend, Image, Sandbox, Snapshot
from airloop.sandbox.bubblewrap.runtime import RuntimeDirectory
from airloop.sandbox.container import system_calls
from airloop.sandbox.container.docker_api import Engine, Refused, find_socket
from airloop.sandbox.container.leftovers import reap
from airloop.sandbox.container.request import Wishes
from airloop.sandbox.container.sandbox import ContainerSandbox

log = logging.getLogger(__name__)

FAIR_CPU = "control group: every container weighs the same and has a number of cores; a limit per process"
NO_FAIR_CPU = "weaker: no limit on a container's share (the engine cannot set one), only on each process's time"
FILTER = "the engine's filter, less namespaces, keys, others' memory and all that bubblewrap refuses"
OWN_FILTER = "weaker: the engine's own filter, which refuses less than bubblewrap's"


class Container(Backend):
    name = "container"

    def __init__(self, runtime: str = "") -> None:
        self.socket = find_socket()
        self.runtime = runtime  # of OCI, as runsc; "": the engine's own choice
        self.engine: Engine | None = None
        self.sandboxes: set[ContainerSandbox] = set()
        self.wishes = Wishes()  # until the engine says what it cannot do
        self._runtime: RuntimeDirectory | None = None  # has the filter of system calls
        self._opening = asyncio.Lock()
        self._present: set[str] = set()

    async def start(self, image: Image | Snapshot) -> Sandbox:
        saved = image if isinstance(image, Snapshot) else None
        plain = image.image if isinstance(image, Snapshot) else image
        if plain.network:
            raise AirError(
                "The container sandbox has no network at all, and this task names hosts it may reach.",
                'use args = { sandbox = "bubblewrap" }, or put what is needed into the image and name no hosts.',
            )
        engine = await self._ready(plain.container)
        while True:
            asked = self.wishes  # others start at the same time, and may be told before this one is
            try:
                return await self._open(engine, plain, saved, asked)
            except Refused as refused:
                less = asked.less(refused.message)
                if less == asked:
                    raise
                self._do_without(less, refused.message)

    def _do_without(self, less: Wishes, why: str) -> None:
        if self.wishes.filter and not less.filter:
            log.warning("containers keep the engine's own filter of system calls: %s", why)
            self.wishes = replace(self.wishes, filter="")
        if self.wishes.fair_cpu and not less.fair_cpu:
            log.warning("containers get no share of the CPU each: %s", why)
            self.wishes = replace(self.wishes, fair_cpu=False)

    async def _open(self, engine: Engine, image: Image, saved: Snapshot | None, wishes: Wishes) -> Sandbox:
        sandbox = ContainerSandbox(engine, image, self.runtime, wishes, self.sandboxes.discard)
        self.sandboxes.add(sandbox)
        try:
            await sandbox.open(saved)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _ready(self, image: str) -> Engine:
        async with self._opening:
            if self.engine is None:
                self.engine = await Engine.connect(self.socket)
                await reap(self.engine)
                await self._write_filter(self.engine)
            if image not in self._present:
                await find_image(self.engine, image)
                self._present.add(image)
            return self.engine

    async def _write_filter(self, engine: Engine) -> None:
        """One for all containers. An engine that is elsewhere or another user's may not be able to read it: it says so
        when it is asked for the first of them."""
        if not engine.podman:
            return
        try:
            self._runtime = self._runtime or RuntimeDirectory()
            file = self._runtime.path / "seccomp.json"
            system_calls.write(await engine.filter_file(), file)
        except (system_calls.NoFilter, InfraError, OSError) as why:
            log.warning("containers keep the engine's own filter of system calls: %s", why)
            return
        self.wishes = replace(self.wishes, filter=str(file))

    def protections(self) -> Mapping[str, str]:
        return {
            "files": "own mount namespace, image read-only, workspace in memory with a size",
            "network": "own network namespace, no way out",
            "processes": "control group",
            "memory": "control group, no swap",
            "cpu": FAIR_CPU if self.wishes.fair_cpu else NO_FAIR_CPU,
            "collusion": "the engine stops the agent's container while its work is graded; weaker: other containers of "
            "the same image share its files, and locks on them can be seen",
            "system calls": f"{FILTER if self.wishes.filter else OWN_FILTER}; no capabilities, no new privileges",
        }

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self.sandboxes)))
        if self.engine is not None:
            await self.engine.close()
            self.engine = None
        self._forget_filter()

    def abandon(self) -> None:
        sandboxes, self.sandboxes = self.sandboxes, set()
        for sandbox in sandboxes:
            sandbox.abandon()
        if self.engine is not None:
            self.engine.remove_now([sandbox.id for sandbox in sandboxes if sandbox.id])
        self._forget_filter()

    def _forget_filter(self) -> None:
        if self._runtime is not None:
            self._runtime.remove()
            self._runtime = None
        self.wishes = replace(self.wishes, filter="")


async def find_image(engine: Engine, name: str) -> None:
    """It is here or can be pulled, or an AirError says how to get it."""
    program = "podman" if engine.podman else "docker"
    if not name:
        raise AirError(
            "The container sandbox needs the name of an image, and none is given.",
            f'name one that `{program} images` lists: args = {{ container = "NAME" }}.',
        )
    try:
        await engine.ask("GET", f"/images/{name}/json")
        return
    except Refused as refused:
        if refused.status != 404:
            raise
    log.info("pulling the image %s", name)
    try:
        await engine.pull(name)
    except InfraError as error:
        raise AirError(
            f"The image {name} is not here and cannot be pulled: {error}",
            f"get it with `{program} pull {name}`, or build it with `{program} build -t {name} DIRECTORY`.",
        ) from error
