"""The contract of a sandbox.

An Image says what a sandbox is made of before any agent has touched it. A Backend starts Sandboxes from images; a
Sandbox is a shell with files. Nothing an agent does inside a sandbox can end the run, reach another sandbox or keep
a file: what it breaks is its own. `SandboxLost` says who broke it: the agent (then the episode is scored on what
is left, which is nothing) or the machine (then it is an InfraError and never scored).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airloop.errors import InfraError
from airloop.sandbox.passage import Passage

HOME = "/home/agent"
WORKSPACE = "/home/agent/workspace"
CALL_SOURCE, CALL_INPUT = f"{HOME}/.call.py", f"{HOME}/.call.in"  # of Sandbox.python, where it goes through the shell
# What every shell starts with, whatever carries it.
ENVIRONMENT = {
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "TMPDIR": "/tmp",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
}


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Times are seconds, sizes are MiB unless named otherwise."""

    memory_mb: int = 4096
    processes: int = 256  # threads count
    open_files: int = 1024
    file_mb: int = 1024  # one file
    disk_mb: int = 2048  # workspace and home together; /tmp has as much again
    cpu_s: int = 3600  # of one process
    cpus: float = 4.0  # cores' worth of time that all its processes have together
    signals: int = 256  # that wait to be delivered: the kernel counts them for all sandboxes and the host together
    output_bytes: int = 1_000_000  # of one command that are kept: the first and the last half


@dataclass(frozen=True)
class Image:
    """What a sandbox starts as. Equal images may share warm sandboxes, so an image is plain, hashable data.

    `files` go into the workspace (or to an absolute path below HOME), `(path, content, mode)`; `binds` are
    host directories or files shown read-only at a path inside, `(host path, path inside)`. The shell starts in
    WORKSPACE with `env` and nothing of the host's environment, after running `setup` (bash) once.
    """

    files: tuple[tuple[str, bytes, int], ...] = ()
    binds: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    setup: str = ""
    limits: Limits = Limits()
    gpus: tuple[str, ...] = ()  # ids of GPUs that are visible inside
    network: tuple[str, ...] = ()  # "host" or "host:port" that may be reached through the HTTP proxy inside
    container: str = ""  # the image's name, for the container backend only
    door: int = 0  # a port of the loopback inside that leads where Sandbox.lead says; 0: none


@dataclass(frozen=True)
class Result:
    """What a command did. `output` is stdout and stderr as they came, decoded with replacement."""

    output: str
    exit_code: int
    cwd: str
    seconds: float
    timed_out: bool = False  # it was interrupted at its deadline; exit_code is then 124
    cut_bytes: int = 0  # that were left out in the middle of `output`
    shell_restarted: bool = False  # the shell ended or hung: a new one, in the same directory, without its variables


@dataclass(frozen=True)
class Snapshot:
    """An image and the state of workspace and home at one moment (a tar): restore() gives it back."""

    image: Image
    archive: bytes = field(repr=False)


class SandboxLost(Exception):
    """The sandbox has ended under the agent's own command (it killed or broke what carries it)."""


# A sandbox starts in milliseconds to seconds, and what cannot start ends, which is seen at once. This is for what
# hangs: many may start at once, on a slow machine, beside other work.
START_S = 120.0


class StartTimeout(InfraError):
    """It had not started after START_S: whether it can on a less busy machine is not known."""


# What has no core because others have them all is not done when its time is up, and gets so many times as long at most.
LATEST = 20


class Clock:
    """Seconds of a sandbox's own time: it stands still while the sandbox is frozen."""

    def __init__(self) -> None:
        self._frozen_s = 0.0
        self._since: float | None = None

    def now(self) -> float:
        return (time.monotonic() if self._since is None else self._since) - self._frozen_s

    def stop(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def go_on(self) -> None:
        if self._since is not None:
            self._frozen_s += time.monotonic() - self._since
            self._since = None


class Sandbox(ABC):
    """A started image. One command at a time; every call has a deadline.

    Any method may raise InfraError (the machine failed) or SandboxLost (the agent ended its own sandbox).
    """

    image: Image
    passage: Passage | None = None  # behind the image's door

    def lead(self, host: str, port: int) -> None:
        """What connects to the image's door inside reaches this address from now on, and no other."""
        if self.passage is None:
            raise ValueError("the image of this sandbox has no door")
        self.passage.target = (host, port)

    @abstractmethod
    async def run(self, command: str, timeout: float) -> Result:
        """Runs bash text in the persistent shell. At `timeout` what it started is interrupted and the shell
        goes on. stdin is empty."""

    async def python(self, source: str, given: bytes, timeout: float) -> Result:
        """Runs Python text in a fresh process, with `given` on its stdin. Where a backend has a warm interpreter it
        overrides this: then no shell is in between, the process group ends with the script, and shell variables
        that an agent exported are not there."""
        await self.put(CALL_SOURCE, source.encode())
        await self.put(CALL_INPUT, given)
        return await self.run(f"python {CALL_SOURCE} < {CALL_INPUT}", timeout)

    @abstractmethod
    async def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file, relative to the workspace; makes directories; replaces what is there, and never
        follows a link out of the agent's sandbox."""

    @abstractmethod
    async def get(self, path: str, limit_bytes: int = 256 << 20) -> bytes | None:
        """The content of a regular file, as the agent's own sandbox sees it; None if there is none (or it is a
        directory, a device, a pipe, or larger than the limit)."""

    async def get_many(self, paths: Sequence[str], limit_bytes: int, total_bytes: int) -> list[bytes | None]:
        """Each as `get` has it; None too for one that does not fit into the total beside those before it. A backend
        that can read many at once overrides this."""
        found: list[bytes | None] = []
        for content in await asyncio.gather(*(self.get(path, min(limit_bytes, total_bytes)) for path in paths)):
            total_bytes -= len(content or b"")
            found.append(content if total_bytes >= 0 else None)
        return found

    @abstractmethod
    async def list(self, pattern: str) -> list[str]:
        """Regular files in the workspace matching a glob such as "*.py" or "**/*.yaml", sorted, relative."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Of the home directory. A container's is without what its agent may not read, and without paths longer than
        the system takes."""

    @abstractmethod
    async def pack(self, limit_bytes: int) -> bytes:
        """The workspace as a tar, with names below HOME.lstrip("/"): what agents made, links and all, so it must be
        read with care. SandboxLost where it is larger than the limit, or cannot be read."""

    async def starved(self) -> bool:
        """Whether something in this sandbox was ended because it had used all the memory that it has; False where
        nobody can tell."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Ends every process of this sandbox and removes all it left. Never raises, may be called twice."""

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    async def freeze(self) -> None:
        """Stops every process of this sandbox, what it left in the background too: when this returns none of them runs,
        until thaw(). The time does not count against a command's deadline. Nothing can be run meanwhile, and not every
        backend can read files. SandboxLost when the agent has seen to it that its sandbox cannot be stopped."""

    @abstractmethod
    async def thaw(self) -> None:
        """Never raises; may be called for a sandbox that is not frozen."""

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Whatever runs elsewhere in the meantime, nobody here can watch it: what sandboxes share (locks on files of
        the system, load, caches) would else carry a message from one to the other."""
        try:
            await self.freeze()
            yield
        finally:
            await self.thaw()

    def cpu_seconds(self) -> float | None:
        """What everything in this sandbox has used, counted from outside; None where nobody counts."""
        return None


class Backend(ABC):
    name: str

    @abstractmethod
    async def start(self, image: Image | Snapshot) -> Sandbox:
        """A fresh sandbox, ready for its first command. AirError if the image cannot be had, InfraError if the
        machine fails."""

    @abstractmethod
    def protections(self) -> Mapping[str, str]:
        """What protects the host, by kind ("memory", "processes", …), in a few words each; weaker ones say so."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Ends everything at once, without an event loop."""


def inside(path: str) -> str:
    """An absolute path inside a sandbox, from one relative to the workspace."""
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def as_files(directory: Path) -> tuple[tuple[str, bytes, int], ...]:
    """Everything below a host directory as `files` of an image."""
    found = sorted(p for p in directory.rglob("*") if p.is_file())
    return tuple((str(p.relative_to(directory)), p.read_bytes(), p.stat().st_mode & 0o777) for p in found)


__all__ = [
    "ENVIRONMENT",
    "HOME",
    "WORKSPACE",
    "Backend",
    "Clock",
    "Image",
    "InfraError",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxLost",
    "Snapshot",
    "as_files",
    "inside",
]
