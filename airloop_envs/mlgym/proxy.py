"""The agent's code and the code that grades it, in two sandboxes with one wire between them (D17).

The host makes a pair of connected sockets and hands one end to each sandbox, through a socket of its own that is bound
into both and closed after the first visitor. From then on the two talk directly, at the speed of the kernel, and
the host never sees a byte of the agent's. agent_link.py is the grader's side, agent_worker.py the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Self

from airloop.sandbox import processes
from airloop.sandbox.base import Sandbox
from airloop_envs.mlgym import agent_link

MODULE = Path(agent_link.__file__)
LINK = "agent_link.py"  # its name in the grader's workspace
WORKER = Path(__file__).with_name("agent_worker.py")
STAND_IN = "import agent_link\n\nagent_link.stand_in(__name__, asks_again={})\n"
MODULE_ENDINGS = (".py", ".pyc", ".so", ".pyd")

Role = Literal["grader", "worker"]


class Wire:
    """One grading's connection. `call_s` is the longest time one call of the agent's code may take."""

    def __init__(self, directory: Path, call_s: float) -> None:
        self.directory = directory
        self.call_s = call_s
        ends = socket.socketpair()
        self._ends: dict[Role, socket.socket] = {"grader": ends[0], "worker": ends[1]}
        self._listeners = {role: _listen(directory / role) for role in self._ends}
        self._namespace = 0  # of the worker's processes
        self.worker: Sandbox | None = None  # whose CPU time is asked for
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._serve(role)) for role in self._ends]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in (*self._ends.values(), *self._listeners.values()):
            end.close()

    def bind(self, role: Role) -> tuple[str, str]:
        return str(self.directory / role), agent_link.PLACE

    def hang_up(self, role: Role) -> None:
        """Nobody will come for this end any more: the other side is told instead of waiting."""
        self._ends[role].close()

    async def _serve(self, role: Role) -> None:
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(self._listeners[role])
        with connection:
            self._listeners[role].close()
            if role == "worker":
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                with contextlib.suppress(OSError):
                    self._namespace = processes.namespace_of(struct.unpack("3i", credentials)[0])
            with contextlib.suppress(OSError):  # whoever is gone already needs nothing
                socket.send_fds(connection, [struct.pack("=d", self.call_s)], [self._ends[role].fileno()])
                self._ends[role].close()
                if role == "grader":
                    await self._tell_time(connection)

    async def _tell_time(self, connection: socket.socket) -> None:
        """b"c": seconds of the agent's sandbox so far; b"a": whether they are all of them."""
        loop = asyncio.get_running_loop()
        while asked := await loop.sock_recv(connection, 1):
            counted = self.worker.cpu_seconds() if self.worker is not None else None
            if asked == b"a":
                answer = float(counted is not None)
            else:
                answer = await asyncio.to_thread(cpu_seconds, self._namespace) if counted is None else counted
            await loop.sock_sendall(connection, struct.pack("=d", answer))


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(str(path))
    os.chmod(path, 0o777)  # a container's user may be another one; the directory is ours alone
    listener.listen(1)
    return listener


def cpu_seconds(namespace: int) -> float:
    """CPU time of every process in a pid namespace, where no control group counts it for the whole sandbox.

    Exact to microseconds for processes that live, to 10 ms for children that have ended and were waited for.
    Not counted is one that ended while its parent ignored SIGCHLD.
    """
    total = 0.0
    for pid in processes.all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if processes.namespace_of(pid) == namespace:
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
                own_user, own_system, user, system = stat[stat.rindex(")") + 2 :].split()[11:15]
                total += (int(user) + int(system)) / processes.TICKS
                try:
                    total += time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) gives
                except OSError:
                    total += (int(own_user) + int(own_system)) / processes.TICKS
    return total


# --- which modules are the agent's --------------------------------------------------------------------------

# What `import` finds without the workspace: names of modules and packages, and a few more names than that.
LIBRARY = """python - <<'END'
import os, sys
names = set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"}
for place in filter(os.path.isdir, sys.path[1:]):
    names.update(entry.split(".")[0] for entry in os.listdir(place))
print("\\n".join(sorted(names)))
END"""


def without_impostors(
    files: Mapping[str, bytes], library: Collection[str], starter: Iterable[str], is_graders: Callable[[str], bool]
) -> dict[str, bytes]:
    """Without files that would be imported in place of others: of a library's (numpy.py, sklearn/__init__.py) or
    of the evaluation's (target/__init__.py, target.so). Names of the task's own starter code are its choice."""
    starter = list(starter)
    taken = set(library) - {_module(name).parts[0] for name in starter}
    modules = [name for name in starter if name.endswith(MODULE_ENDINGS) and is_graders(name)]
    graders = {_module(name) for name in (*modules, LINK)}
    return {name: data for name, data in files.items() if not _is_impostor(PurePosixPath(name), taken, graders)}


def _is_impostor(path: PurePosixPath, taken: set[str], graders: set[PurePosixPath]) -> bool:
    module = _module(str(path))
    if module in graders or not graders.isdisjoint(module.parents):
        return True
    # A directory without __init__ loses against a library of the same name.
    imported = len(path.parts) == 1 or (len(path.parts) == 2 and module.name == "__init__")
    return imported and path.suffix in MODULE_ENDINGS and module.parts[0] in taken


def _module(name: str) -> PurePosixPath:
    """pkg/target for pkg/target.py and for pkg/target.cpython-311-x86_64-linux-gnu.so"""
    path = PurePosixPath(name)
    return path.with_name(path.name.split(".")[0] or path.name)


def stand_ins(files: Iterable[str], is_timed: bool = False) -> dict[str, bytes]:
    """What the grader's workspace gets in place of the agent's modules: all of them, whatever way they may be
    imported; none of the agent's own text. Where the score is a time, every call is made, also one whose answer is
    known."""
    modules = {name: STAND_IN.format(is_timed).encode() for name in files if name.endswith(".py")}
    return modules | {LINK: MODULE.read_bytes()}
