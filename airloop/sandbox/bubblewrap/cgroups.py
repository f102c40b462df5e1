"""Limits on a whole sandbox, by the kernel's control groups, where this process may make them.

Version 2 where its controllers are handed down to us, else version 1. Where neither can be written, sandboxes fall
back to limits per process, and `Backend.protections` says so. Stopping a sandbox needs no controller of version 2, so
its tree is used for that wherever there is one: unlike version 1's, its frozen processes can be killed.

All sandboxes of a process are in one group, which weighs on every core as much as one of the host's processes: however
many of them compute, the trainer that waits for them, and keeps a GPU busy, has its time. Among each other they are
equal.
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
FREEZE, FREEZE_OLD = "cgroup.freeze", "freezer.state"
ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit; shift; done; shift; exec "$@"'
PERIOD_US = 100_000  # in which a sandbox may use its share of CPU time
WEIGHT, SHARES = 100, 1024  # of every sandbox alike, however many processes it has, and of one of the host's
MOST_WEIGHT = 10_000
CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True)
class Groups:
    """The directories in which a sandbox's groups are made: one for version 2, one per controller for version 1."""

    memory: Path | None
    pids: Path | None
    version: int
    cpu: Path | None = None  # where CPU time is counted
    fair: Path | None = None  # where it is divided
    freezer: Path | None = None

    def parents(self) -> list[Path]:
        found = (self.memory, self.pids, self.cpu, self.fair, self.freezer)
        return list(dict.fromkeys(parent for parent in found if parent))

    def make(self, name: str, limits: Limits) -> list[Path]:
        """The new groups of one sandbox; what is to be in it goes into each one's cgroup.procs."""
        made: list[Path] = []
        try:
            for parent in self.parents():
                group = _around(parent) / name
                group.mkdir()
                made.append(group)
            self._limit(f"{_own_name()}/{name}", limits)
        except OSError:
            remove(made)
            raise
        return made

    def leave(self) -> None:
        """Removes the group of all sandboxes, unless another backend of this process still has some in it."""
        for parent in self.parents():
            _removed(parent / _own_name())

    def _limit(self, name: str, limits: Limits) -> None:
        if self.memory:
            value = str(limits.memory_mb << 20)
            _write(self.memory / name / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"), value)
            with contextlib.suppress(OSError):  # machines without swap accounting have no such file
                _write(self.memory / name / SWAP_FILES[self.version == 1], "0" if self.version == 2 else value)
        if self.pids:
            _write(self.pids / name / "pids.max", str(limits.processes + 1))  # bwrap itself is one of them
        if self.fair:
            quota = int(limits.cpus * PERIOD_US)
            if self.version == 2:
                _write(self.fair / name / "cpu.weight", str(WEIGHT))
                _write(self.fair / name / "cpu.max", f"{quota} {PERIOD_US}")
            else:
                _write(self.fair / name / "cpu.shares", str(SHARES))
                _write(self.fair / name / "cpu.cfs_period_us", str(PERIOD_US))
                _write(self.fair / name / "cpu.cfs_quota_us", str(quota))


def _own_name() -> str:
    return f"{PREFIX}{os.getpid()}"


def _around(parent: Path) -> Path:
    """The group of all sandboxes of this process."""
    around = parent / _own_name()
    if not around.is_dir():
        around.mkdir()
        handed = _read(parent / "cgroup.subtree_control").split()
        for controller in (c for c in CONTROLLERS if c in handed):
            _write(around / "cgroup.subtree_control", f"+{controller}")
        cores = os.cpu_count() or 1
        for name, weight in (("cpu.weight", min(MOST_WEIGHT, cores * WEIGHT)), ("cpu.shares", cores * SHARES)):
            if (around / name).exists():
                _write(around / name, str(weight))
    return around


def find() -> Groups:
    own = {name: path.resolve() for name, path in _own()}  # version 1 may have one place under two names
    if "" in own:  # version 2: one tree for all controllers
        for place in (own[""], own[""].parent):
            controllers = _read(place / "cgroup.subtree_control").split()
            if {"memory", "pids"} <= set(controllers) and os.access(place, os.W_OK):
                return Groups(place, place, 2, place, place if "cpu" in controllers else None, place)
    wanted = {"memory": "", "pids": "", "cpuacct": "", "cpu": "cpu.cfs_quota_us", "": FREEZE, "freezer": FREEZE_OLD}
    usable = {name: own[name] for name, file in wanted.items() if name in own and _usable(own[name], file)}
    freezer = usable.get("") or usable.get("freezer")
    return Groups(usable.get("memory"), usable.get("pids"), 1, usable.get("cpuacct"), usable.get("cpu"), freezer)


def entering(groups: Iterable[Path]) -> list[str]:
    """What to put in front of a command that is to start inside: then its own view of the tree begins there, and no
    name of ours is seen in /proc/self/cgroup."""
    places = [str(group / "cgroup.procs") for group in groups]
    return ["/bin/sh", "-c", ENTER, "sh", *places, "--"] if places else []


def freeze(groups: Iterable[Path], frozen: bool) -> bool:
    """Asks for it; False where there is nothing to ask. `is_frozen` says when it has come about."""
    for group in groups:
        for name, words in ((FREEZE, "01"), (FREEZE_OLD, ("THAWED", "FROZEN"))):
            if (group / name).exists():
                _write(group / name, words[frozen])
                return True
    return False


def is_frozen(groups: Iterable[Path]) -> bool:
    return any(
        "frozen 1" in _read(group / "cgroup.events") or _read(group / FREEZE_OLD).strip() == "FROZEN"
        for group in groups
    )


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
    for parent in found.parents():
        for around in parent.glob(f"{PREFIX}*"):
            maker = around.name.removeprefix(PREFIX).split("-")[0]
            if maker.isdigit() and not Path(f"/proc/{maker}").exists():
                inner: list[Path] = []
                with contextlib.suppress(OSError):  # another process that starts now may reap the same, here and below
                    inner = [path for path in around.iterdir() if path.is_dir()]
                count += sum(_reaped(group) for group in (*inner, around))
    return count


def _reaped(group: Path) -> bool:
    with contextlib.suppress(OSError):
        freeze([group], False)  # version 1 lets nothing frozen die
    for pid in members(group):
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
    return remove([group])


def _own() -> list[tuple[str, Path]]:
    """This process's directory in each hierarchy: "" is version 2's."""
    places = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            mount = MOUNT / name if name else (MOUNT if (MOUNT / "cgroup.controllers").exists() else MOUNT / "unified")
            places.append((name, mount / path.lstrip("/")))
    return places


def _usable(parent: Path, file: str) -> bool:
    """Whether groups that have such a file can be made here, found out by making one."""
    trial = parent / f"{PREFIX}{os.getpid()}-trial"
    try:
        trial.mkdir(exist_ok=True)
        there = not file or os.access(trial / file, os.W_OK)
        trial.rmdir()
    except OSError:
        return False
    return there


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
