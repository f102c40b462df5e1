"""Processes as the host sees them, without asking anything inside a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # imported also where there are no sandboxes


@dataclass(frozen=True)
class Process:
    pid: int
    inside: int  # its number in its own pid namespace
    started: float  # seconds since boot


def of_namespace(namespace: int, candidates: Iterable[int] | None = None) -> Iterator[Process]:
    """Those in the pid namespace with this inode; zombies are left out."""
    for pid in candidates if candidates is not None else all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if namespace_of(pid) == namespace and (found := look(pid)) is not None:
                yield found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def namespace_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def look(pid: int) -> Process | None:
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX" and int(fields[17]) <= 1:  # its first thread may have ended, and others run on
        return None
    inside = pid
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            inside = int(line.split()[-1])
    return Process(pid, inside, int(fields[19]) / TICKS)


def queued_s(pid: int) -> float:
    """How long it has stood in line for a core, by the kernel's count: the thread of it that stood longest. 0 where the
    kernel does not count."""
    longest = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            longest = max(longest, int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]))
    return longest / 1e9


def is_stopped(pid: int) -> bool:
    """Whether no thread of it runs, or it has ended."""
    states = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
            states.append(stat[stat.rindex(")") + 2])
    return all(state in "TtZX" for state in states)


def now() -> float:
    """Seconds since boot, rounded down to the clock that processes are dated by."""
    with open("/proc/uptime") as file:
        return float(file.read().split()[0]) - 1 / TICKS


def stop_command(how: str, found: Iterable[Process], shell_pid: int, since: float) -> None:
    """Of a sandbox's processes the shell, by its number inside, and those that have started since its last command."""
    found = list(found)
    shell = [p.pid for p in found if p.inside == shell_pid]
    new = [p.pid for p in found if p.started >= since and p.inside not in (1, shell_pid)]
    if how == "interrupt":
        # The shell first: it ends the line when a child dies of an interrupt that it has had too. The other way
        # round it may begin the line's next command in between.
        send([*shell, *new], signal.SIGINT)
    elif how == "kill":
        send(new, signal.SIGKILL)
        send(shell, signal.SIGINT)
    else:
        send([*new, *shell], signal.SIGKILL)


async def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for the end of a child, which the kernel tells of; `process.wait` looks for it every 50 ms, in a thread."""
    if process.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    watch = os.pidfd_open(process.pid)
    loop.add_reader(watch, _tell, end)
    try:
        async with asyncio.timeout(seconds):
            await end
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(watch)
        os.close(watch)
    return process.wait() is not None


def _tell(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


def waited(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """The same where there is no event loop."""
    try:
        return process.wait(seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
