"""Sandboxes made by bubblewrap: own namespaces, a read-only system, files in memory that vanish with the sandbox.

Workspace, home and /tmp are file systems in memory with a size, mounted only inside the sandbox: nothing has to be
cleaned up, nothing of the host is written, and a full disk is the agent's own. The host reads and writes files
there through a door (door.py) that enters the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping

from airloop.errors import AirError
from airloop.sandbox.base import START_S, Backend, Image, Sandbox, Snapshot, StartTimeout
from airloop.sandbox.bubblewrap.command import check_gpus
from airloop.sandbox.bubblewrap.host import Host
from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from airloop.sandbox.interpreter import PACKAGES, PRELOAD

log = logging.getLogger(__name__)

NO_BWRAP = (
    "install it (Debian and Ubuntu: `apt-get install bubblewrap`; Fedora: `dnf install bubblewrap`), or choose another "
    'backend yourself: args = { sandbox = "container" } with Docker or Podman.'
)
NOT_LINUX = 'choose the other backend, Docker or Podman: args = { sandbox = "container" }.'
NO_NAMESPACES = (
    "allow user namespaces (`sysctl kernel.unprivileged_userns_clone=1`, on Ubuntu 24.04 also "
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; in Docker `--security-opt seccomp=unconfined`), "
    'or choose another backend yourself: args = { sandbox = "container" }.'
)

NO_PIDS = (
    "weaker: a limit per user, whom all sandboxes and the host share (no control group is writable)",
    "weaker: no limit on processes, because root has none (no control group is writable)",
)
NO_MEMORY = (
    "weaker: no limit on what a sandbox's processes use together, only on each of them (no control group is writable); "
    "memory that is no process's, as of memfd_create and shmget, is refused"
)
NO_FAIR_CPU = "weaker: no limit on a sandbox's share, only on each process's time, and a deadline per command"
STOP = "stop the agent's sandbox while its work is graded"
OWN_FILES = (
    "every sandbox has its own view of the system's files, so that no lock is seen in another; weaker: load and caches"
)
SHARED_FILES = "weaker: other sandboxes share the system's files with the grader's, and locks on them can be seen"


def check() -> str:
    """The path of a bwrap that works here, or an AirError that says what is missing."""
    if not sys.platform.startswith("linux"):
        raise AirError(f"The bubblewrap sandbox is of Linux, and this is {platform.system()}.", NOT_LINUX)
    found = shutil.which("bwrap")
    if found is None:
        raise AirError("The bubblewrap sandbox needs the program `bwrap`, which is not installed.", NO_BWRAP)
    trial = [found, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        ran = subprocess.run(trial, capture_output=True, text=True, timeout=START_S)
    except subprocess.TimeoutExpired as error:
        raise StartTimeout(f"bubblewrap did not start a sandbox within {START_S:g} s") from error
    if ran.returncode != 0:
        raise AirError(f"bubblewrap cannot make a sandbox here: {ran.stderr.strip()}", NO_NAMESPACES)
    return found


class Bubblewrap(Host, Backend):
    name = "bubblewrap"

    def __init__(
        self,
        python: str = "",
        packages: tuple[str, ...] = PACKAGES,
        warm_python: bool = True,
        preload: tuple[str, ...] = PRELOAD,
        rehearsal: str = "",
        syscalls: str = "",
    ) -> None:
        super().__init__(check(), python, packages, warm_python, preload, rehearsal, syscalls)

    async def start(self, image: Image | Snapshot) -> Sandbox:
        saved = image if isinstance(image, Snapshot) else None
        check_gpus((saved.image if saved else image).gpus)  # type: ignore[union-attr]
        sandbox = BubblewrapSandbox(self, saved.image if saved else image, self.new_name())  # type: ignore[arg-type]
        self.sandboxes.add(sandbox)
        try:
            await sandbox.open(saved)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def protections(self) -> Mapping[str, str]:
        groups = self.groups
        fair = "control group: every sandbox weighs the same and has a number of cores; a limit per process"
        return {
            "files": "own mount namespace, system read-only, workspace in memory with a size",
            "network": "own network namespace, no way out unless a host is named",
            "processes": "control group" if groups.pids else NO_PIDS[os.geteuid() == 0],
            "memory": "control group" if groups.memory else NO_MEMORY,
            "cpu": f"{fair}, a deadline per command" if groups.fair else NO_FAIR_CPU,
            "collusion": f"{'control group' if groups.freezer else 'weaker: signals'} {STOP}; "
            + (OWN_FILES if self.layered else SHARED_FILES),
            "system calls": self.filtered if self.filter else "weaker: no filter is known for this architecture",
        }

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self.sandboxes)))
        self._leave()

    def abandon(self) -> None:
        for sandbox in list(self.sandboxes):
            sandbox.abandon()
        self._leave()

    def _leave(self) -> None:
        for door in self._doors.values():
            door.close()
        self._doors.clear()
        self.runtime.remove()
        self.groups.leave()
