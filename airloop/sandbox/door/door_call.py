"""One call of Python asked for by the host: a script in a sandbox, its input, what it prints. Standard library only.

Unlike `python x.py` in the agent's shell there is no shell and no command that stands for the script: the child of
door.py that entered the sandbox forks the script, reads what it prints and answers the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from typing import Any

CHUNK = 1 << 16
LOOK_S = 0.25  # a wait that took much longer than this was one of a frozen sandbox: that time is not the script's
IDLE = 0.05  # who computes less than this share of the time waits by itself, and not for a core


class Output:
    """The first and the last half of what may be kept, and how many bytes lay between."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.head = b""
        self.tail = b""
        self.cut = 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.half:
            self.cut += len(self.tail) - self.half
            self.tail = self.tail[-self.half :]


def streams(connection: socket.socket, given: bytes) -> None:
    """0 is the input, 1 and 2 the way out, 3 the host's connection, 4 where we read: and nothing else is open."""
    source = os.memfd_create("stdin")
    view = memoryview(given)
    while view:
        view = view[os.write(source, view) :]
    os.lseek(source, 0, os.SEEK_SET)
    reads, writes = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (source, writes, writes, connection.detach(), reads)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    os.closerange(5, 1 << 16)


def host() -> socket.socket:
    """The way back, after streams()."""
    connection = socket.socket(fileno=3)
    connection.setblocking(True)  # the timeout it had before is not this object's
    return connection


def request(header: dict[str, Any]) -> dict[str, Any]:
    """As the command `python -c SOURCE` would have sent it."""
    facts = {"kind": "-c", "argv": ["-c"], "source": header["source"], "unbuffered": False}
    return facts | {"cwd": header["cwd"], "env": header["env"], "umask": 0o022}


def watch(child: int, timeout: float, longest: float, limit: int) -> tuple[dict[str, Any], bytes]:
    """Waits for the script, for its deadline or for the host to go away; its whole process group ends with it.

    `timeout` is of its own time: where it computes and others have the cores too, what it has computed, for `longest`
    at most. What the script left running elsewhere may hold the pipe open: it is read until the script ends, not
    longer.
    """
    for fd in (0, 1, 2):
        os.close(fd)
    ending = os.pidfd_open(child)
    os.set_blocking(4, False)
    output = Output(limit)
    left, at_most, computed = timeout, longest, 0.0
    waiting = [ending, 3, 4]
    timed_out = False
    while True:
        before = time.monotonic()
        ready, _, _ = select.select(waiting, [], [], max(min(left, at_most, LOOK_S), 0.0))
        took = min(time.monotonic() - before, 2 * LOOK_S)
        at_most -= took
        by_now = cpu_seconds(child, computed)
        used, computed = by_now - computed, by_now
        left -= min(used, took) if used > IDLE * took else took
        if 4 in ready and not drain(output):
            waiting.remove(4)
        if ending in ready:
            break
        if 3 in ready or min(left, at_most) <= 0:  # nobody waits any more, or the time is up
            timed_out = 3 not in ready
            signal.pidfd_send_signal(ending, signal.SIGKILL)
            select.select([ending], [], [])
            break
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while 4 in waiting and output.cut < limit and drain(output):
        continue
    facts = {"code": os.waitstatus_to_exitcode(status), "timed_out": timed_out, "cut": output.cut}
    return facts | {"head": len(output.head)}, output.head + output.tail


def cpu_seconds(pid: int, otherwise: float) -> float:
    """What the process has computed, by the clock that POSIX gives each one; `otherwise` when it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return otherwise


def drain(output: Output) -> bool:
    """Reads what is there; False at the end of it."""
    try:
        data = os.read(4, CHUNK)
    except BlockingIOError:
        return False
    output.add(data)
    return bool(data)
