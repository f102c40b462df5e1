"""Starting bwrap: its process, the number of its child, the limits of that child before it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from airloop.errors import InfraError
from airloop.interrupts import default_signals
from airloop.sandbox.base import Image, Limits
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.command import command_line
from airloop.sandbox.bubblewrap.host import Host


def spawn(
    host: Host, image: Image, directory: Path, groups: Sequence[Path], mark: str, errors: int
) -> tuple[subprocess.Popen[bytes], int, int]:
    """Starts bwrap, which waits; its process, where it says its child's pid, and how to let it go on. What it complains
    of goes to the file `errors`."""
    info_read, info_write = os.pipe2(os.O_CLOEXEC)
    block_read, block_write = os.pipe2(os.O_CLOEXEC)
    rules = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(rules, host.filter or b"")
    os.lseek(rules, 0, os.SEEK_SET)
    fds = {"info": info_write, "block": block_read} | ({"seccomp": rules} if host.filter else {})
    try:
        layers = host.layers(image)
        around = [*cgroups.entering(groups), *default_signals(), *(layers.around() if layers else ())]
        process = subprocess.Popen(
            [*around, *command_line(host, image, directory, mark, fds, layers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=list(fds.values()),
            env={},
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        os.close(info_read)
        os.close(block_write)
        raise InfraError(f"bubblewrap could not be started: {error}") from error
    finally:
        for fd in (info_write, block_read, rules):
            os.close(fd)
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
    return process, info_read, block_write


def limits_of(host: Host, limits: Limits) -> dict[str, int]:
    """Of each process of a sandbox, by their names in `resource`."""
    values = {
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_mb << 20,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_CORE": 0,
        "RLIMIT_SIGPENDING": limits.signals,
        "RLIMIT_MSGQUEUE": 0,
    }
    if not host.groups.pids and os.geteuid() != 0:
        values["RLIMIT_NPROC"] = limits.processes
    if not host.groups.memory:
        values["RLIMIT_AS"] = limits.memory_mb << 20
    return values


def set_limits(pid: int, limits: Mapping[str, int]) -> None:
    import resource  # Linux alone has its prlimit; this module is imported everywhere

    for name, value in limits.items():
        resource.prlimit(pid, getattr(resource, name), (value, value))


async def child_pid(info: int) -> int:
    """bwrap writes a JSON object, and nothing after it that we wait for."""
    loop = asyncio.get_running_loop()
    os.set_blocking(info, False)
    text = b""
    while b"}" not in text:
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(info, _once, ready)
        try:
            await ready
        finally:
            loop.remove_reader(info)
        more = os.read(info, 4096)
        if not more:
            raise ValueError("bwrap ended")
        text += more
    return int(json.loads(text)["child-pid"])


def _once(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
