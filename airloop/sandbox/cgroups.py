"""Limits on a whole world, by the kernel's control groups, where this process may make them.

Version 2 where its controllers are handed down to us, else version 1. Where neither can be written, worlds fall
back to limits per process, and `Backend.protections` says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from airloop.sandbox.base import Limits

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "air-"
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")


@dataclass(frozen=True)
class Groups:
    """The directories in which a world's groups are made: one for version 2, one per controller for version 1."""

    memory: Path | None
    pids: Path | None
    version: int
    cpu: Path | None = None  # where CPU time is counted

    def make(self, name: str, limits: Limits) -> list[Path]:
        """The new groups of one world; the pid of its first process goes into each one's cgroup.procs."""
        made = []
        for parent in dict.fromkeys(p for p in (self.memory, self.pids, self.cpu) if p):
            group = parent / f"{PREFIX}{os.getpid()}-{name}"
            group.mkdir()
            made.append(group)
        if self.memory:
            group = self.memory / made[0].name
            value = str(limits.memory_mb << 20)
            _write(group / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"), value)
            with contextlib.suppress(OSError):  # machines without swap accounting have no such file
                _write(group / SWAP_FILES[self.version == 1], "0" if self.version == 2 else value)
        if self.pids:
            _write(self.pids / made[0].name / "pids.max", str(limits.processes))
        return made


def find() -> Groups:
    own = dict(_own())
    if "" in own:  # version 2: one tree for all controllers
        for place in (own[""], own[""].parent):
            controllers = _read(place / "cgroup.subtree_control").split()
            if {"memory", "pids"} <= set(controllers) and os.access(place, os.W_OK):
                return Groups(place, place, 2, place)
    usable = {name: own[name] for name in ("memory", "pids", "cpuacct") if name in own and _usable(own[name])}
    return Groups(usable.get("memory"), usable.get("pids"), 1, usable.get("cpuacct"))


def enter(groups: Iterable[Path], pid: int) -> None:
    for group in groups:
        _write(group / "cgroup.procs", str(pid))


def members(group: Path) -> list[int]:
    return [int(pid) for pid in _read(group / "cgroup.procs").split()]


def cpu_seconds(groups: Iterable[Path]) -> float | None:
    """What all processes of these groups have used, those that have ended too; None where nobody counts."""
    for group in groups:
        if text := _read(group / "cpuacct.usage"):
            return int(text) / 1e9
        for line in _read(group / "cpu.stat").splitlines():
            if line.startswith("usage_usec"):
                return int(line.split()[1]) / 1e6
    return None


def ran_out_of_memory(groups: Iterable[Path]) -> bool:
    """Whether the kernel has killed processes of these groups because they had used all they may."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(group / name).splitlines():
                if line.startswith("oom_kill ") and int(line.split()[1]) > 0:
                    return True
    return False


def remove(groups: Iterable[Path], patience_s: float = 1.0) -> bool:
    """Removes empty groups; processes that are just ending hold them for a moment."""
    left = list(groups)
    deadline = time.monotonic() + patience_s
    while left:
        left = [group for group in left if not _removed(group)]
        if left and time.monotonic() > deadline:
            return False
        if left:
            time.sleep(0.002)
    return True


def reap() -> int:
    """Removes groups whose maker is gone, with what still runs in them. Returns how many there were."""
    found = find()
    count = 0
    for parent in dict.fromkeys(p for p in (found.memory, found.pids, found.cpu) if p):
        for group in parent.glob(f"{PREFIX}*-*"):
            maker = group.name.removeprefix(PREFIX).split("-")[0]
            if maker.isdigit() and not Path(f"/proc/{maker}").exists():
                for pid in members(group):
                    with contextlib.suppress(OSError):
                        os.kill(pid, 9)
                count += remove([group])
    return count


def _own() -> list[tuple[str, Path]]:
    """This process's directory in each hierarchy: "" is version 2's."""
    places = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            mount = MOUNT / name if name else (MOUNT if (MOUNT / "cgroup.controllers").exists() else MOUNT / "unified")
            places.append((name, mount / path.lstrip("/")))
    return places


def _usable(parent: Path) -> bool:
    """Whether groups can be made here, found out by making one."""
    trial = parent / f"{PREFIX}{os.getpid()}-trial"
    try:
        trial.mkdir(exist_ok=True)
        trial.rmdir()
    except OSError:
        return False
    return True


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
