"""Runs an agent's function, every episode in a process of its own, forked from one that has its libraries loaded.

    python worker.py agent.py solve

Orders come as lines of JSON on the standard input, results leave on the standard output. It stands alone: it runs in
the agent's own environment, under any Python from 3.9 on, and ends with whoever started it, as do its episodes.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import random
import selectors
import signal
import subprocess
import sys
import traceback
from typing import Any, NoReturn

KEPT = 4096  # characters of what an episode prints, its last ones
DEPTH = 64  # of what processes have started that have started processes
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TEMPORARY = 75  # the exit code of a program that says: not my fault, try again (sysexits.h)
# Trouble on the way to the policy: no ending of the agent's, whatever it was wrapped into.
NOT_THE_AGENTS = (ConnectionError,)
NAMES_OF_SUCH = {"APIConnectionError", "APITimeoutError", "InternalServerError", "InfraError"}


def main() -> None:
    path, name = sys.argv[1:3]
    del sys.path[0]  # where this file is: an agent's library may be called as one beside it
    if sys.argv[3:] == ["--once"]:  # forked from a process that could not stay as it was
        order = json.loads(sys.stdin.readline())
        episode(path, name, order, int(order["result"]))
    orders, results = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what libraries print is no result
    preload(path)
    Server(path, name, orders, results).run()


def preload(path: str) -> None:
    """Imports what the agent's file imports at its top, so that no episode need. What fails here will fail there."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        return
    with contextlib.suppress(Exception):  # most of that library is imported when a first client is made
        the_client().OpenAI(api_key="none", base_url="http://127.0.0.1").chat.completions  # noqa: B018
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


class Server:
    def __init__(self, path: str, name: str, orders: int, results: int) -> None:
        self.path, self.name, self.orders, self.results = path, name, orders, results
        self.running: dict[str, Running] = {}  # by the order's id
        self.held = b""
        self.select = selectors.DefaultSelector()
        self.forks = can_fork()

    def run(self) -> None:
        ended, woken = os.pipe()
        for end in (ended, woken, self.orders):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to be heard
        self.select.register(ended, selectors.EVENT_READ, self.look)
        self.select.register(self.orders, selectors.EVENT_READ, self.read_orders)
        try:
            self.send({"ready": True, "forks": self.forks})
            while self.orders >= 0:
                for key, _ in self.select.select():
                    if key.fd in self.select.get_map():  # not closed meanwhile
                        key.data(key.fd)
        except BrokenPipeError:
            pass  # who started it is gone
        finally:
            for one in self.running.values():
                kill(one.pid)
            end_orphans(set())

    def read_orders(self, fd: int) -> None:
        data = os.read(fd, 65536)
        if not data:
            self.orders = -1
            return
        self.held += data
        *lines, self.held = self.held.split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, order: dict[str, Any]) -> None:
        if "kill" in order:
            if order["kill"] in self.running:
                kill(self.running[order["kill"]].pid)
            return
        opened: list[int] = []
        try:
            opened += os.pipe()
            opened += os.pipe()
            pid = os.fork()
        except OSError as error:  # too many files or processes
            for fd in opened:
                os.close(fd)
            self.send({"id": order["id"], "code": 0, "result": {"infra": f"cannot be started: {error}"}, "printed": ""})
            return
        printed, said, result, told = opened
        if pid == 0:
            self.leave([printed, result], said)
            if self.forks:
                episode(self.path, self.name, order, told)
            os.set_inheritable(told, True)
            start_anew(self.path, self.name, {**order, "result": told})
        os.close(said)
        os.close(told)
        self.running[order["id"]] = one = Running(pid, printed, result)
        for fd in (printed, result):
            os.set_blocking(fd, False)
            self.select.register(fd, selectors.EVENT_READ, one.read)

    def leave(self, others: list[int], said: int) -> None:
        """In an episode's process: nothing is left of who started it but where to print."""
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (1, 2):
            os.dup2(said, fd)
        for one in [*others, said, self.results, *(key.fd for key in list(self.select.get_map().values()))]:
            with contextlib.suppress(OSError):
                os.close(one)

    def look(self, fd: int) -> None:
        """Somebody has ended. Its process counts, not its pipes: what it has left running may hold those for ever."""
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
                result = json.loads(one.held[one.result] or b"{}")
            except ValueError:
                result = {}
            printed = one.held[one.printed].decode("utf-8", "replace")
            self.send({"id": id, "code": code, "result": result, "printed": printed})

        end_orphans({one.pid for one in self.running.values()})

    def send(self, said: dict[str, Any]) -> None:
        data = json.dumps(said).encode() + b"\n"
        while data:
            data = data[os.write(self.results, data) :]


class Running:
    """An episode's process, and what has come of it: the end of what it prints, and its result."""

    def __init__(self, pid: int, printed: int, result: int) -> None:
        self.pid, self.printed, self.result = pid, printed, result
        self.held = {printed: b"", result: b""}

    def read(self, fd: int) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        kept = self.held[fd] + data
        self.held[fd] = kept[-KEPT:] if fd == self.printed else kept
        return bool(data)


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


def start_anew(path: str, name: str, order: dict[str, Any]) -> NoReturn:
    read, write = os.pipe()
    feed(write, order)
    os.close(write)
    os.dup2(read, 0)
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), path, name, "--once"])


def feed(write: int, order: dict[str, Any]) -> None:
    """It may be more than a pipe holds: somebody else has to write it."""
    if os.fork() == 0:
        data = json.dumps(order).encode() + b"\n"
        while data:
            data = data[os.write(write, data) :]
        os._exit(0)


# --- in an episode's own process -------------------------------------------------------------------------------


def episode(path: str, name: str, order: dict[str, Any], told: int) -> NoReturn:
    os.environ.update(order["env"])
    reseed(int(order["env"].get("AIR_SEED", 0)))
    result = outcome(path, name, order["task"], order.get("given"))
    sys.stdout.flush()
    sys.stderr.flush()
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(told, data) :]
    os._exit(0)


def outcome(path: str, name: str, task: dict[str, Any], given: list[str] | None = None) -> dict[str, Any]:
    """What the function said of the episode, or what became of it. `given`: of a scorer, where the agent's files are
    and what it printed."""
    try:
        function = load(path, name)
    except BaseException as error:
        return {"defect": f"{path} cannot be imported: {told_of(error, path)}"}
    if function is None:
        return {"defect": f"{path} has no function {name!r}"}
    try:
        places, names = scorers_arguments(function, task, given) if given else arguments(function, task)
        said = function(*places, **names)
        value = asyncio.run(_awaited(said)) if inspect.isawaitable(said) else said
        return {"score": as_score(value)}
    except SystemExit as error:
        kind = "infra" if error.code == TEMPORARY else "crash"
        return {kind: f"it ended by sys.exit({error.code!r}) instead of returning a score"}
    except BadScore as error:
        return {"defect": str(error)}
    except BaseException as error:
        traceback.print_exc()
        return {"infra" if is_infra(error) else "crash": told_of(error, path)}


def is_infra(error: BaseException | None) -> bool:
    """Of it, or of what it was raised from."""
    for _ in range(DEPTH):
        if error is None:
            return False
        if isinstance(error, NOT_THE_AGENTS) or {k.__name__ for k in type(error).__mro__} & NAMES_OF_SUCH:
            return True
        error = error.__cause__ or error.__context__
    return False


def reseed(seed: int) -> None:
    """Forks of one process would all draw the same numbers."""
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed % 2**32)


async def _awaited(given: Any) -> Any:
    return await given


def load(path: str, name: str) -> Any:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("agent_program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_program"] = module
    spec.loader.exec_module(module)
    return getattr(module, name, None)


def arguments(function: Any, task: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The task and, if the function takes it, a client: OpenAI's where that is installed, else one of ours."""
    taken = inspect.signature(function).parameters.values()
    by_place = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    by_name = any(p.name == "client" and p not in by_place for p in taken)
    if len(by_place) < 2 and not by_name:
        return (task,), {}
    library, later = the_client(), inspect.iscoroutinefunction(inspect.unwrap(function))
    if library.__name__ != "openai":
        client = library.AsyncClient() if later else library.Client()
    else:
        client = library.AsyncOpenAI() if later else library.OpenAI()
    return ((task,), {"client": client}) if by_name else ((task, client), {})


def scorers_arguments(function: Any, task: dict[str, Any], given: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As many as it takes of the task, the folder with the agent's files, and what the agent printed."""
    taken = inspect.signature(function).parameters.values()
    by_place = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (task, pathlib.Path(given[0]), given[1])[: len(by_place)], {}


def the_client() -> Any:
    """OpenAI's library where it is installed, else the file beside this one."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("openai")
    spec = importlib.util.spec_from_file_location("air_client", os.path.join(os.path.dirname(__file__), "client.py"))
    assert spec is not None and spec.loader is not None
    if "air_client" not in sys.modules:
        sys.modules["air_client"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["air_client"])
    return sys.modules["air_client"]


class BadScore(Exception):
    pass


def as_score(value: Any) -> Any:
    """A number, or numbers by name."""
    if isinstance(value, dict):
        return {str(name): as_number(one, f"the score {name!r}") for name, one in value.items()}
    return as_number(value, "the score")


def as_number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadScore(f"{what} that the function returned is {value!r}, and must be a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise BadScore(f"{what} that the function returned is {number}")
    return number


def told_of(error: BaseException, path: str) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


if __name__ == "__main__":
    main()
