"""Runs an agent's function, every episode in a process of its own, forked from one that has its libraries loaded.

    python worker.py agent.py solve

Requests come as lines of JSON on the standard input, results leave on the standard output. This file imports nothing of
airloop: it runs in the agent's own environment, under any Python from 3.9 on. It ends with its parent process, as do
its episodes.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
from typing import Any, NoReturn

PRINTED_LIMIT = 4096  # characters of what an episode prints, its last ones
MOST_READY = 256  # processes that wait for a request
MOST_FILES = 8192  # three for a process that waits, two for one that runs: more than the usual limit of 1024
DEPTH = 64  # of what processes have started that have started processes
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    path, name = sys.argv[1:3]
    del sys.path[0]  # where this file is: an agent's library may be called as one beside it
    if sys.argv[3:] == ["--once"]:  # forked from a process that could not stay as it was
        request = json.loads(sys.stdin.readline())
        run_one_module().run_episode(path, name, request, int(request["result"]))
    requests, results = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what libraries print is no result
    preload(path)
    EpisodeServer(path, name, requests, results).run()


def run_one_module() -> Any:
    """The module run_one.py beside this file, loaded by its path, since sys.path is the agent's."""
    name = "air_run_one"
    if name not in sys.modules:
        place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_one.py")
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def preload(path: str) -> None:
    """Imports what the agent's file imports at its top, so that no episode need. What fails here will fail there."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        return
    with contextlib.suppress(Exception):  # most of that library is imported when a first client is made
        run_one_module().client_library().OpenAI(api_key="none", base_url="http://127.0.0.1").chat.completions  # noqa: B018
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            # The agent's own modules may read their variables when they are imported: those are an episode's.
            found = importlib.util.find_spec(name.partition(".")[0])
            place = str(found.origin) if found is not None else ""
            own = place.startswith(sys.path[0] + os.sep) and not place.startswith(sys.prefix + os.sep)
            if found is not None and not own:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


class EpisodeServer:
    def __init__(self, path: str, name: str, requests: int, results: int) -> None:
        self.path, self.name, self.requests, self.results = path, name, requests, results
        self.running: dict[str, EpisodeProcess] = {}  # by the request's id
        self.ready: list[EpisodeProcess] = []  # forked ahead of need: each waits for its request
        self.most = 0  # at once, so far
        self.received = b""
        self.select = selectors.DefaultSelector()
        self.forks = can_fork()
        self.files = allow_files(MOST_FILES)

    def run(self) -> None:
        ended, woken = os.pipe()
        for end in (ended, woken, self.requests):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wakeup descriptor tells of it
        self.select.register(ended, selectors.EVENT_READ, self.reap_ended)
        self.select.register(self.requests, selectors.EVENT_READ, self.read_requests)
        try:
            self.send({"ready": True, "forks": self.forks})
            while self.requests >= 0:
                # No more processes in all than there were at once before: a machine may allow few.
                lacks = self.forks and len(self.ready) + len(self.running) < min(self.most, MOST_READY)
                events = self.select.select(0 if lacks else None)
                for key, _ in events:
                    if key.fd in self.select.get_map():  # not closed meanwhile
                        key.data(key.fd)
                if lacks and not events:
                    self.fork_ahead()
        except BrokenPipeError:
            pass  # the parent process is gone
        finally:
            for one in (*self.running.values(), *self.ready):
                kill(one.pid)
            end_orphans(set())

    def read_requests(self, fd: int) -> None:
        data = os.read(fd, 65536)
        if not data:
            self.requests = -1
            return
        self.received += data
        *lines, self.received = self.received.split(b"\n")
        for line in lines:
            self.handle_request(json.loads(line))

    def handle_request(self, request: dict[str, Any]) -> None:
        if "kill" in request:
            if request["kill"] in self.running:
                kill(self.running[request["kill"]].pid)
            return
        try:
            one = self.take_ready() or self.start(None if self.forks else request)
        except OSError as error:  # too many files or processes
            self.send(
                {"id": request["id"], "code": 0, "result": {"infra": f"cannot be started: {error}"}, "printed": ""}
            )
            return
        self.running[request["id"]] = one
        self.most = max(self.most, len(self.running))
        for fd in (one.printed, one.result):
            os.set_blocking(fd, False)
            self.select.register(fd, selectors.EVENT_READ, one.read)
        with contextlib.suppress(BrokenPipeError):  # killed meanwhile: it will be seen to have ended
            one.give(json.dumps(request).encode() + b"\n")

    def take_ready(self) -> EpisodeProcess | None:
        while self.ready:
            if not (one := self.ready.pop(0)).is_gone():
                return one
        return None

    def fork_ahead(self) -> None:
        try:
            self.ready.append(self.start(None))
        except OSError:  # what is too much now may be there when it is needed
            self.most = len(self.ready) + len(self.running)

    def start(self, request: dict[str, Any] | None) -> EpisodeProcess:
        """A process for an episode: of the `request`, or of the one that it will be given."""
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += os.pipe()
            pid = os.fork()
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        printed, output_fd, result, result_fd, given, requests = opened
        if pid == 0:
            self.enter_episode_process([printed, result, requests], output_fd)
            if request is None:  # which ends this process
                run_one_module().run_episode(self.path, self.name, wait_for_request(given), result_fd)
            os.set_inheritable(result_fd, True)
            exec_worker(self.path, self.name, {**(request or {}), "result": result_fd})
        for fd in (output_fd, result_fd, given):
            os.close(fd)
        return EpisodeProcess(pid, printed, result, requests)

    def enter_episode_process(self, others: list[int], output_fd: int) -> None:
        """After the fork, in the episode's process: closes all that belongs to the server, and directs its output."""
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        allow_files(self.files)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (1, 2):
            os.dup2(output_fd, fd)
        waiting = [fd for one in self.ready for fd in (one.printed, one.result, one.requests)]
        registered = [key.fd for key in self.select.get_map().values()]
        for one in [*others, output_fd, self.results, *waiting, *registered]:
            with contextlib.suppress(OSError):
                os.close(one)

    def reap_ended(self, fd: int) -> None:
        """A child process has ended. The end of the process counts, not that of its pipes, which processes it has left
        running may hold open for ever."""
        os.read(fd, 65536)
        for id, one in list(self.running.items()):
            if not has_ended(one.pid):
                continue
            kill(one.pid)  # what it has left behind; its number is its own until it is waited for
            code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
            for pipe in (one.printed, one.result):
                while one.read(pipe):
                    pass
                self.select.unregister(pipe)
                os.close(pipe)
            del self.running[id]
            try:
                result = json.loads(one.received[one.result] or b"{}")
            except ValueError:
                result = {}
            printed = one.received[one.printed].decode("utf-8", "replace")
            self.send({"id": id, "code": code, "result": result, "printed": printed})

        self.ready = [one for one in self.ready if not one.is_gone()]
        end_orphans({one.pid for one in (*self.running.values(), *self.ready)})

    def send(self, message: dict[str, Any]) -> None:
        write_all(self.results, json.dumps(message).encode() + b"\n")


class EpisodeProcess:
    """An episode's process, with what was read of it: the end of its output, and its result."""

    def __init__(self, pid: int, printed: int, result: int, requests: int) -> None:
        self.pid, self.printed, self.result, self.requests = pid, printed, result, requests
        self.received = {printed: b"", result: b""}

    def give(self, request: bytes) -> None:
        try:
            write_all(self.requests, request)
        finally:
            os.close(self.requests)

    def is_gone(self) -> bool:
        """Whether a process that waits for a request was killed."""
        if not has_ended(self.pid):
            return False
        os.waitpid(self.pid, 0)
        for fd in (self.printed, self.result, self.requests):
            os.close(fd)
        return True

    def read(self, fd: int) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        received = self.received[fd] + data
        self.received[fd] = received[-PRINTED_LIMIT:] if fd == self.printed else received
        return bool(data)


def wait_for_request(given: int) -> dict[str, Any]:
    with os.fdopen(given, "rb") as file:
        line = file.readline()
    if not line:  # the server is gone
        os._exit(0)
    return dict(json.loads(line))


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def can_fork() -> bool:
    """Whether a fork of this process is as good as a new one: on Linux, and while it has a single thread."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def has_ended(pid: int) -> bool:
    """Without taking its exit code away."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.strip() or state.strip().startswith("Z")  # macOS before Python 3.13


def end_orphans(own: set[int]) -> None:
    """What episodes have started in groups of their own becomes ours when they end, where we are its reaper."""
    for _ in range(DEPTH):
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                found = {int(pid) for pid in file.read().split()} - own
        except OSError:
            return
        for pid in found:
            kill(pid)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        if not found:
            return


def prctl(option: int, value: int) -> None:
    """Where there is such a thing: on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)


def allow_files(count: int) -> int:
    """So many open files, as far as this process may; how many they were before."""
    try:
        import resource
    except ImportError:  # Windows
        return count
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, most), most) if most > 0 else (count, most))
    return before


def exec_worker(path: str, name: str, request: dict[str, Any]) -> NoReturn:
    read, write = os.pipe()
    feed(write, request)
    os.close(write)
    os.dup2(read, 0)
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), path, name, "--once"])


def feed(write: int, request: dict[str, Any]) -> None:
    """A request may be longer than a pipe holds: a process of its own writes it."""
    if os.fork() == 0:
        write_all(write, json.dumps(request).encode() + b"\n")
        os._exit(0)


if __name__ == "__main__":
    main()
