"""The way into a running sandbox: a clean process that forks children which enter its namespaces.

It runs as a program of its own, on the standard library alone, started by `doorkeeper.py`. No code of an agent
ever runs in it: every request is served by a forked child that first joins the sandbox's control groups and
namespaces, so a file is read and written as the agent's own sandbox sees it, and links lead nowhere else.

With modules to preload it is also what makes `python x.py` quick: the child that runs an agent's script is a
fork of this process, with numpy, pandas and scikit-learn already imported.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import door_call
import door_files
import door_script

LIBC = ctypes.CDLL(None, use_errno=True)
NS_GET_USERNS = 0xB701
KINDS = ("cgroup", "net", "ipc", "uts", "pid", "mnt")
MAX_CHILDREN = 64  # per sandbox, at one time
PR_SET_DUMPABLE = 4
REQUEST_S = 60  # for a request to arrive in full


class Entrance:
    """What is needed to enter: opened while its first process is known to live, so a number is never reused."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.id = facts["id"]
        self.groups = facts["groups"]
        self.limits = facts["limits"]  # resource name -> value
        self.filter = base64.b64decode(facts["filter"])
        base = f"/proc/{facts['pid']}/ns/"
        kinds = KINDS if is_other(base + "cgroup") else KINDS[1:]
        self.spaces = [os.open(base + kind, os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
        # It belongs to the host's user namespace: it has to be entered from there.
        self.time = os.open(base + "time", os.O_RDONLY | os.O_CLOEXEC) if is_other(base + "time") else None
        self.inner = os.open(base + "user", os.O_RDONLY | os.O_CLOEXEC)
        # Mounts may belong to a user namespace around the one that processes live in.
        self.outer = fcntl.ioctl(self.spaces[-1], NS_GET_USERNS)
        self.python = facts.get("python_socket")
        self.listener: socket.socket | None = None
        if self.python:
            with contextlib.suppress(FileNotFoundError):  # of a door that has ended
                os.unlink(self.python)
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(self.python)
            os.chmod(self.python, 0o777)
            self.listener.listen(64)

    def close(self) -> None:
        for fd in [*self.spaces, self.inner, self.outer, *self.own_time()]:
            os.close(fd)
        if self.listener:
            self.listener.close()

    def own_time(self) -> list[int]:
        return [] if self.time is None else [self.time]

    def enter(self, limited: bool) -> None:
        """`limited`: also its control groups, for what runs an agent's code. Our own work inside must not fail
        because the agent has used all it may."""
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nothing inside may look into us, or into our children yet
        for group in self.groups if limited else ():
            with open(group + "/cgroup.procs", "w") as file:
                file.write("0")
        same = os.fstat(self.outer).st_ino == os.fstat(self.inner).st_ino
        for fd in [*self.own_time(), self.outer, *self.spaces, *([] if same else [self.inner])]:
            if LIBC.setns(fd, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")


class Server:
    def __init__(self, listener: socket.socket, alive: int) -> None:
        self.listener = listener
        self.alive = alive  # a pipe whose other end the host holds: at its end we end
        self.sandboxes: dict[str, Entrance] = {}
        self.children: dict[int, str] = {}  # pid -> sandbox id
        self.selector = selectors.DefaultSelector()
        self.pid = os.getpid()

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, "host")
        self.selector.register(self.alive, selectors.EVENT_READ, "alive")
        self.selector.register(wake_read, selectors.EVENT_READ, "wake")
        while True:
            for key, _ in self.selector.select():
                if key.data == "alive":
                    return
                if key.data == "wake":
                    drain(wake_read)
                    self.reap()
                elif key.data == "host":
                    self.from_host()
                else:
                    self.from_sandbox(self.sandboxes.get(key.data))

    def reap(self) -> None:
        while self.children:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.children.pop(pid, None)

    def from_host(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        connection.settimeout(REQUEST_S)
        with connection:
            try:
                header, rest = read_header(connection)
                op = header["op"]
                if op == "register":
                    self.register(header)
                    answer(connection, {"ok": True})
                elif op == "forget":
                    self.forget(header["id"])
                    answer(connection, {"ok": True})
                else:
                    sandbox = self.sandboxes[header["id"]]
                    kept = connection.dup()  # the child's; ours is closed when this ends, there too
                    serve = serve_call if op == "call" else serve_host
                    try:
                        self.fork(sandbox, lambda: serve(sandbox, header, rest, kept))
                    finally:
                        if os.getpid() == self.pid:
                            kept.close()
            except Exception as error:
                answer(connection, {"error": f"{type(error).__name__}: {error}"})

    def register(self, facts: dict[str, Any]) -> None:
        self.forget(facts["id"])  # two requests at once may both have found that we do not know it
        sandbox = Entrance(facts)
        self.sandboxes[sandbox.id] = sandbox
        if sandbox.listener:
            sandbox.listener.setblocking(False)
            self.selector.register(sandbox.listener, selectors.EVENT_READ, sandbox.id)

    def forget(self, id: str) -> None:
        sandbox = self.sandboxes.pop(id, None)
        if sandbox is None:
            return
        if sandbox.listener:
            self.selector.unregister(sandbox.listener)
        sandbox.close()

    def from_sandbox(self, sandbox: Entrance | None) -> None:
        """A command `python …` inside the sandbox wants to run."""
        if sandbox is None or sandbox.listener is None:
            return
        try:
            connection, _ = sandbox.listener.accept()
        except OSError:
            return
        with connection:
            if sum(owner == sandbox.id for owner in self.children.values()) < MAX_CHILDREN:
                kept = connection.dup()
                try:
                    self.fork(sandbox, lambda: serve_python(sandbox, kept))
                finally:
                    if os.getpid() == self.pid:
                        kept.close()

    def fork(self, sandbox: Entrance, work: Callable[[], None]) -> None:
        pid = os.fork()
        if pid:
            self.children[pid] = sandbox.id
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        raise Child(work)


class Child(BaseException):
    """Carries a child's work out of the server's frames, so that a script finds nothing of ours in its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


def is_other(space: str) -> bool:
    """Not every kernel gives a sandbox its own; and into our own none can be entered again."""
    try:
        return os.stat(space).st_ino != os.stat("/proc/self/ns/" + os.path.basename(space)).st_ino
    except OSError:
        return False


def drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def read_header(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    data = b""
    while b"\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise EOFError("the request ended early")
        data += more
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def answer(connection: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(header).encode() + b"\n" + payload)


def serve_host(sandbox: Entrance, header: dict[str, Any], rest: bytes, connection: socket.socket) -> None:
    entered = False
    try:
        sandbox.enter(limited=False)
        entered = True
        door_script.drop_rights()  # files are read and written as the agent itself could
        os.umask(0o022)
        if header["op"] == "listen":
            listening = socket.create_server(("127.0.0.1", header["port"]))
            fds = array.array("i", [listening.fileno()])
            connection.sendmsg([b'{"ok": true}\n'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            return
        facts, payload = door_files.OPERATIONS[header["op"]](header, lambda: receive(connection, rest, header["bytes"]))
    except Exception as error:
        # Once inside, a full disk, a file in the way or a tree too deep to walk is the agent's doing.
        theirs = entered and not isinstance(error, EOFError)
        facts, payload = {"error": f"{type(error).__name__}: {error}", "theirs": theirs}, b""
    answer(connection, facts, payload)


def serve_call(sandbox: Entrance, header: dict[str, Any], rest: bytes, connection: socket.socket) -> None:
    """Python text that the host wants run inside, as an agent's own: in its cage, from no frame of ours."""
    sandbox.enter(limited=True)
    door_call.streams(connection, receive(connection, rest, header["bytes"]))
    try:
        child = os.fork()
    except OSError as error:  # the agent has as many processes as it may have
        answer(door_call.host(), {"error": f"{type(error).__name__}: {error}", "theirs": True})
        return
    if child == 0:
        os.close(4)
        cage, request = (sandbox.limits, sandbox.filter), door_call.request(header)
        raise Child(lambda: door_script.become_script(cage, request))
    facts, output = door_call.watch(child, header["timeout"], header["longest"], header["limit"])
    answer(door_call.host(), facts, output)


def receive(connection: socket.socket, data: bytes, size: int) -> bytes:
    parts, got = [data], len(data)
    while got < size:
        more = connection.recv(min(1 << 20, size - got))
        if not more:
            raise EOFError("the payload ended early")
        parts.append(more)
        got += len(more)
    return b"".join(parts)


def serve_python(sandbox: Entrance, connection: socket.socket) -> None:
    """Between the sandbox and the script: forks it into the sandbox's pids, passes signals on, returns its code.

    What the script's process has open is put in order before it exists: from its first moment an agent can stop it
    and look at it.
    """
    sandbox.enter(limited=True)
    connection.settimeout(REQUEST_S)
    request, fds = receive_request(connection)
    channel = keep_only(connection, fds)
    child = os.fork()
    if child == 0:
        cage = (sandbox.limits, sandbox.filter)
        raise Child(lambda: door_script.become_script(cage, request))
    forward(child, channel)


def keep_only(connection: socket.socket, fds: list[int]) -> socket.socket:
    """The script's three streams as 0, 1 and 2, the connection as 3, and nothing else."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (*fds, connection.detach())]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    os.closerange(4, 1 << 16)
    return socket.socket(fileno=3)


def forward(child: int, channel: socket.socket) -> None:
    watch = os.pidfd_open(child)
    channel.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(watch, selectors.EVENT_READ, "end")
        selector.register(channel, selectors.EVENT_READ, "signal")
        while True:
            events = {key.data for key, _ in selector.select()}
            if "end" in events:
                break
            try:
                wish = channel.recv(1)
            except OSError:
                wish = b""
            # The command that stands for the script in the agent's shell has ended: so does the script.
            signal.pidfd_send_signal(watch, wish[0] if wish else signal.SIGKILL)
            if not wish:
                selector.unregister(channel)
    _, status = os.waitpid(child, 0)
    channel.setblocking(True)
    with contextlib.suppress(OSError):  # nobody waits for it any more
        channel.sendall(struct.pack("=i", os.waitstatus_to_exitcode(status)))


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    fds = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_LEN(3 * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    (size,) = struct.unpack("=I", data[:4])
    if size > 1 << 24 or len(fds) != 3:
        raise ValueError("not a request to run python")
    return json.loads(receive(connection, data[4:], size)), list(fds)


def main() -> None:
    door_script.call_oneself(["python"])  # before any sandbox could see where on the host this program lies
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in filter(None, sys.argv[2].split(",")):
        try:
            importlib.import_module(name)
        except Exception as error:
            os.write(2, f"door: {name} cannot be preloaded: {error}\n".encode())
    try:
        exec(sys.argv[3], {"__name__": "rehearsal"})
    except Exception as error:
        os.write(2, f"door: the rehearsal failed: {error}\n".encode())
    sys.path[0:1] = []  # this program's own directory is nothing a script should import from
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        Server(listener, 0).serve()
        return
    except Child as child:
        work = child.work
    run_child(work)


def run_child(work: Callable[[], None] | None) -> None:
    """A child's work, and that of the child that it may fork in turn."""
    code = 1
    while work is not None:
        try:
            work()
            work, code = None, 0
        except Child as child:
            work = child.work
        except BaseException as error:
            work = None
            with contextlib.suppress(OSError):
                os.write(2, f"door: {type(error).__name__}: {error}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
