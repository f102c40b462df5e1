"""Processes that start in milliseconds: forked from one that has imported what they need and does nothing else.

Importing torch and transformers takes seconds of a core, each time. What is forked must have a single thread and must
never have touched CUDA: the server starts as a new process, looks at itself after its imports, and says so if a fork of
it would not be as good as a new process. It ends with whoever started it, and what it has forked ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

HERE = "/proc/self/task"
# For a process that is to be forked: libraries that start threads when they are loaded start none. (Arrow's allocator,
# which pandas loads where it is installed, has one of its own on x86.)
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


class CannotFork(Exception):
    """Why a fork of the server would not be as good as a new process."""


def threads() -> int:
    """Of this process, those of libraries included; 0 where that cannot be known."""
    return len(os.listdir(HERE)) if os.path.isdir(HERE) else 0


def is_clean() -> bool:
    torch = sys.modules.get("torch")
    return threads() == 1 and not (torch is not None and torch.cuda.is_initialized())


class Forked:
    """A process of the server's, as subprocess.Popen has one. It keeps its own exit code: the kernel gives a process id
    again, after some 30,000 others."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        self._server.await_end(self, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._server.await_end(self, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Our end of it: orders go there with file descriptors, and back come process ids and, later, exit codes."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Raises CannotFork, or ChildProcessError if it dies before it can say. A process that is as clean as the
        server has to be, and has imported all, forks it; `env` is for one that is started."""
        if not hasattr(os, "fork"):  # Windows, which could not hand the server its end of the connection either
            raise CannotFork("this system forks no processes")
        self._socket, theirs = socket.socketpair()
        self._running: dict[int, Forked] = {}  # by process id; none whose end was told
        if is_clean() and all(module in sys.modules for module in modules):
            self._pid = _fork_server(theirs, self._socket)
        else:
            self._pid = _start_server(theirs, modules, os.environ if env is None else env)
        theirs.close()
        self._pending = b""
        try:
            why = self._hear()["cannot"]
        except ChildProcessError:
            self.close()
            raise
        if why:
            self.close()
            raise CannotFork(why)

    def start(
        self, target: str, words: Sequence[str], files: Sequence[int], env: Mapping[str, str], interrupt: bool = True
    ) -> Forked:
        """`module:function` is called without arguments in a new process: sys.argv[1:] are the words, and the files,
        which stay ours as well, get the numbers 0, 1, 2, 3 …. `interrupt`: Ctrl-C is not ignored in it."""
        order = {
            "target": target,
            "words": list(words),
            "env": dict(env),
            "cwd": os.getcwd(),
            "interrupt": interrupt,
        }
        text = json.dumps(order).encode()
        socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], files)
        self._socket.sendall(text)
        while "started" not in (told := self._hear()):
            self._note_end(told)
        process = self._running[told["started"]] = Forked(self, told["started"])
        return process

    def await_end(self, process: Forked, wait_s: float | None) -> None:
        """Its `returncode`, negative for a signal's, is there after this, unless it runs longer."""
        until = None if wait_s is None else time.monotonic() + wait_s
        while process.returncode is None:
            if not self._readable(None if until is None else max(0.0, until - time.monotonic())):
                return
            try:
                self._note_end(self._hear())
            except ChildProcessError:  # killed, and with it all that it had forked
                process.returncode = -signal.SIGKILL

    def _note_end(self, told: dict[str, Any]) -> None:
        self._running.pop(told["pid"]).returncode = told["code"]

    def _hear(self) -> dict[str, Any]:
        while b"\n" not in self._pending:
            if not (received := self._socket.recv(65536)):
                raise ChildProcessError("the process that others are forked from is gone")
            self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def _readable(self, wait_s: float | None) -> bool:
        if b"\n" in self._pending:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(wait_s))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


class SharedServer:
    """One server for all threads of a process: started when it is first needed, and anew after it was killed."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._lock = threading.RLock()
        self._server: ForkServer | None = None
        self._owner = 0  # of a fork of this process the server is another's
        self.cannot = ""  # why nothing can be forked

    def start(self, target: str, files: Sequence[int], env: Mapping[str, str]) -> SharedForked | None:
        """As ForkServer has it; None where nothing can be forked."""
        with self._lock:
            for _ in range(2):
                try:
                    server = self._own(env)
                    return SharedForked(server.start(target, [], files, env, interrupt=False), self._lock)
                except CannotFork as why:
                    self.cannot = str(why)
                    return None
                except OSError:  # it is gone
                    self._server = None
        return None

    def _own(self, env: Mapping[str, str]) -> ForkServer:
        if self.cannot:
            raise CannotFork(self.cannot)
        if self._server is None or self._owner != os.getpid():
            self._server, self._owner = ForkServer(self._modules, env), os.getpid()
        return self._server


class SharedForked:
    """A forked process that any thread may wait for."""

    def __init__(self, process: Forked, lock: threading.RLock) -> None:
        self._process, self._lock = process, lock
        self.pid = process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with self._lock:
            self.returncode = self._process.poll()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode


# --- the server -------------------------------------------------------------------------------------------------------


def _start_server(theirs: socket.socket, modules: Sequence[str], given: Mapping[str, str]) -> int:
    env = {**given, **ONE_THREAD}
    command = [sys.executable, "-m", "airloop.forkserver", str(theirs.fileno()), *modules]
    process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
    process.returncode = 0  # waited for by its id, not by this object
    return process.pid


def _fork_server(theirs: socket.socket, ours: socket.socket) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) != 0:
        return pid
    ours.close()
    os.setsid()
    for fd in map(int, os.listdir("/proc/self/fd")):  # a run's lock, for one, must not be held by two
        if fd > 2 and fd != theirs.fileno():
            with contextlib.suppress(OSError):
                os.close(fd)
    _run(theirs)


def _run(connection: socket.socket) -> NoReturn:
    """Serves, and in each forked process does what was ordered."""
    code: Any = 0
    try:
        if (order := _serve(connection)) is not None:
            sys.argv = [order["target"], *order["words"]]
            module, _, function = order["target"].partition(":")
            getattr(importlib.import_module(module), function)()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    _exit(code)


def _exit(code: Any) -> NoReturn:
    """As the interpreter ends, but without taking every module apart, which would first copy what the fork shares."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for every order. Returns the order in what was forked, and None when nobody is left to ask."""
    atexit._clear()  # of the process that we may be a fork of
    cannot = "" if _becomes_clean() else f"it has {threads() or 'an unknown number of'} threads"
    _tell(connection, {"cannot": cannot})
    gc.freeze()  # a collection in a fork would touch, and so copy, all that it shares
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wake:
                    os.read(wake, 4096)
                elif (asked := _receive(connection)) is None:
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    return None
                elif (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    for fd in (wake, woken, connection.detach()):
                        os.close(fd)
                    _become(*asked)
                    return asked[0]
                else:
                    children.add(pid)
                    for fd in asked[1]:
                        os.close(fd)
                    _tell(connection, {"started": pid})
            _reap(connection, children)


def _becomes_clean(patience_s: float = 1.0) -> bool:
    """A thread that has ended, and was waited for, is listed a moment longer: on a busy machine, when we look."""
    until = time.monotonic() + patience_s
    while not is_clean():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """None when whoever asked is gone, also if it had not read all that it was told, or amid an order."""
    try:
        head, files, _, _ = socket.recv_fds(connection, 4, 16)
        length, text = int.from_bytes(head, "big"), b""
        while head and len(text) < length:
            if not (part := connection.recv(length - len(text))):
                return None
            text += part
    except ConnectionResetError:
        return None
    return (json.loads(text), files) if head else None


def _reap(connection: socket.socket, children: set[int]) -> None:
    for pid in sorted(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            _tell(connection, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(connection: socket.socket, told: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # seen as the connection's end
        connection.sendall(json.dumps(told).encode() + b"\n")


def _become(order: dict[str, Any], files: list[int]) -> None:
    """The process that was asked for: its files, its environment, its signals."""
    aside = [os.dup2(fd, 100 + at) for at, fd in enumerate(files)]  # out of the way of the numbers that they get
    for fd in files:
        os.close(fd)
    for number, fd in enumerate(aside):
        os.dup2(fd, number)
        os.close(fd)
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # which somebody may have asked for in the server, with its environment
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler if order["interrupt"] else signal.SIG_IGN)
    torch = sys.modules.get("torch")
    if torch is not None and order["env"].get("OMP_NUM_THREADS", "").isdecimal():
        torch.set_num_threads(int(order["env"]["OMP_NUM_THREADS"]))  # read by libraries only when they are loaded


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    _run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
