"""`air` as a process of its own, for tests that kill it, signal it or read its pipes, without the seconds in which each
process imports torch and transformers: each is forked from one that has imported them and does nothing else.

That one has a single thread and never touches CUDA, so that a fork of it is as good as a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Imported once.
PRELOADED = (
    "airloop.cli",
    "airloop.train",
    "airloop.engine.embedded",
    "airloop.models.tiny",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
)
WAIT_S = 300.0


class Process:
    """As subprocess.Popen has it. What is not asked for goes nowhere."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        stdout: bool = False,
        stderr: bool = False,
        ignores_interrupt: bool = False,
        code: str | None = None,
    ) -> None:
        """`air WORDS`, or `python -c CODE WORDS`."""
        self.args = [str(word) for word in words]
        pipes = [os.pipe() if wanted else None for wanted in (stdout, stderr)]
        nowhere = os.open(os.devnull, os.O_RDWR)
        order = {
            "words": self.args,
            "code": code,
            "env": dict(os.environ if env is None else env),
            "cwd": os.getcwd(),
            "ignores_interrupt": ignores_interrupt,
        }
        self._server = _server()
        theirs = [nowhere, *(pipe[1] if pipe else nowhere for pipe in pipes)]
        self.pid = self._server.start(order, theirs)
        self.returncode: int | None = None
        for fd in {*theirs}:
            os.close(fd)
        self.stdout, self.stderr = (os.fdopen(pipe[0], encoding="utf-8") if pipe else None for pipe in pipes)

    def poll(self) -> int | None:
        self.returncode = self._server.ended(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float = WAIT_S) -> int:
        self.returncode = self._server.ended(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(["air", *self.args], timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = WAIT_S) -> tuple[str, str]:
        """What it writes until it ends."""
        found = ["", ""]

        def read(at: int, stream: IO[str]) -> None:
            with stream:
                found[at] = stream.read()

        streams = [(at, stream) for at, stream in enumerate((self.stdout, self.stderr)) if stream]
        readers = [threading.Thread(target=read, args=given, daemon=True) for given in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[0], found[1]


def run(words: Sequence[object], timeout: float = WAIT_S, **given: Any) -> subprocess.CompletedProcess[str]:
    """To its end, as subprocess.run(…, capture_output=True, text=True)."""
    process = Process(words, stdout=True, stderr=True, **given)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


class _Server:
    """Our end of the process that forks: orders go to it with three file descriptors, and for each it tells the new
    process' id and, when that has ended, its exit code."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # One thread each, or numpy's library would start some that a fork would lack.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=env,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("r", encoding="utf-8")
        self._codes: dict[int, int] = {}
        atexit.register(self.close)

    def start(self, order: dict[str, Any], files: Sequence[int]) -> int:
        text = json.dumps(order).encode()
        socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], files)
        self._socket.sendall(text)
        while True:
            told = json.loads(self._lines.readline())
            if "started" in told:
                return int(told["started"])
            self._codes[told["pid"]] = told["code"]

    def ended(self, pid: int, wait_s: float) -> int | None:
        until = time.monotonic() + wait_s
        while pid not in self._codes:
            if not self._readable(max(0.0, until - time.monotonic())):
                return None
            told = json.loads(self._lines.readline())
            self._codes[told["pid"]] = told["code"]
        return self._codes[pid]

    def _readable(self, wait_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(wait_s))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait(30)


@functools.cache
def _server() -> _Server:
    return _Server()


# --- in the process that forks ----------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for every order. Returns in the forked processes, with the order; None when nobody is left to ask."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wake:
                    os.read(wake, 4096)
                elif (asked := _receive(connection)) is None:
                    _end(children)
                    return None
                else:
                    order, files = asked
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        os.close(wake)
                        os.close(woken)
                        connection.close()
                        _become(order, files)
                        return order
                    children.add(pid)
                    for fd in files:
                        os.close(fd)
                    _tell(connection, {"started": pid})
            _reap(connection, children)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    if not head:
        return None
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    return json.loads(text), files


def _reap(connection: socket.socket, children: set[int]) -> None:
    for pid in sorted(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            _tell(connection, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(connection: socket.socket, told: dict[str, int]) -> None:
    connection.sendall(json.dumps(told).encode() + b"\n")


def _end(children: set[int]) -> None:
    """Whoever started us is gone, and nobody would end these."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """The process that was asked for: its files, its environment, its signals."""
    for target, fd in enumerate(files):
        os.dup2(fd, target)
    for fd in {*files} - {0, 1, 2}:
        os.close(fd)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if order["ignores_interrupt"] else signal.default_int_handler)
    os.setsid()


def _main() -> None:
    import importlib

    sys.path.insert(0, str(Path(__file__).parents[2]))
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would touch, and so copy, all of them
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    assert threads == 1, f"a process of {threads} threads cannot be forked"
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    code: Any = 0
    try:
        if order is not None:
            _work(order)
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    _exit(code)


def _work(order: dict[str, Any]) -> None:
    sys.argv = ["air" if order["code"] is None else "-c", *order["words"]]
    if order["code"] is not None:
        exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})
        return
    from airloop.cli import main

    main()


def _exit(code: Any) -> None:
    """As the interpreter ends, but without taking every module apart, which would first copy what the fork shares."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _main()
