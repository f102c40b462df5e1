"""In the grader's sandbox: stands in for the agent's modules. Every call is a message to another sandbox.

The evaluation imports `strategy` and gets a module of ours in its place; the agent's own file is in the worker's
sandbox and nowhere else. Arguments go there as a pickle (a copy: what is done to them there stays there). What comes
back is JSON with a few tagged types and is never unpickled, so the agent's code cannot make objects here: plain
data comes as a copy, anything else as a handle whose attributes and calls are messages again. A handle is no number
and no container, so that a value that was checked is the value that is used.

A program of its own on the standard library: it is copied into the grader's workspace.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import struct
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from typing import Any

PLACE = "/run/agent_link"  # the host's socket
HEAD = struct.Struct("=I")
DOUBLE = struct.Struct("=d")
RESULT, REPEATED, CONSTANT = b"rRC"  # as agent_worker.py says: the same call has it again; any call of it has
KEPT, LONGEST_KEPT = 50_000, 4096  # answers that are not asked for again, and bytes of one with its request
LARGEST = 64 << 20  # bytes of an answer
LONGEST_ERROR = 2000
TOO_LONG = "A call of the agent's code took too long.\n"
TIMED_OUT = 124  # this program's exit code when a call has lasted too long, as timeout(1) has it
# An evaluation may expect these of the code it calls; others are AgentCodeError alone.
EXPECTED: tuple[type[Exception], ...] = (
    AttributeError, ArithmeticError, AssertionError, ImportError, IndexError, KeyError, LookupError,
    NotImplementedError, RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError,
)  # fmt: skip


class AgentCodeError(Exception):
    """The agent's code failed, or its answer cannot be read."""

    def __str__(self) -> str:
        return str(self.args[0])


AgentCodeError.__module__ = "builtins"  # told without a module's name
ERRORS = {kind.__name__: type("AgentCodeError", (AgentCodeError, kind), {}) for kind in EXPECTED}
for _kind in ERRORS.values():
    _kind.__module__ = "builtins"


class Link:
    def __init__(self) -> None:
        self.host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.host.connect(PLACE)
        said, fds, _, _ = socket.recv_fds(self.host, DOUBLE.size, 1)
        self.worker = socket.socket(fileno=fds[0])
        seconds = DOUBLE.unpack(said)[0]
        limit = struct.pack("=qq", int(seconds), int(seconds % 1 * 1e6))  # struct timeval, on 64-bit machines
        self.worker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.thread_lock = threading.RLock()
        import fcntl  # here, before foreign code runs: the module's names are wanted on Windows, too

        self.fcntl = fcntl
        # A file without a name: where no control group counts memory, memfd_create is refused.
        self.process_lock = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the program lives
        self.is_shared = False  # with processes that this one has forked, or was forked from
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork)
        self.broken = ""
        self.kept: dict[Any, bytes] = {}  # answers that are the same again, by their requests
        self.asks_again = False  # every time, whatever is known

    def _before_fork(self) -> None:
        """Waits until no thread asks anything: from then on they, too, take turns with the other process."""
        self.thread_lock.acquire()
        self.is_shared = True

    def _after_fork(self) -> None:
        self.thread_lock.release()

    def ask(self, *request: Any) -> Any:
        form = (request[1], len(request[2]), *request[3]) if request[0] == "call" else ()
        if kept := self.kept.get(form):
            return read_answer(kept)
        try:
            data = pickle.dumps(request, 5)
        except Exception as error:
            raise TypeError(f"the evaluation passes the agent's code what cannot be sent: {error}") from None
        if kept := self.kept.get(data):
            return read_answer(kept)
        if request[0] == "set":  # what a function uses may be another thing from now on
            self.kept.clear()
        with self.thread_lock:  # an evaluation may use threads, and fork
            if not self.is_shared:
                answer = self._exchange(data)
                self._keep(data, form, answer)
                return read_answer(answer)
            self.fcntl.lockf(self.process_lock, self.fcntl.LOCK_EX)
            try:
                answer = self._exchange(data)
            finally:
                self.fcntl.lockf(self.process_lock, self.fcntl.LOCK_UN)
        return read_answer(answer)

    def _keep(self, request: bytes, form: tuple[Any, ...], answer: bytes | bytearray) -> None:
        """Who plays without chance and memory need not be asked twice: the worker says so of its own code, and could
        win nothing by a lie (the answer is its own)."""
        kind = answer[HEAD.size] if len(answer) > HEAD.size and not self.asks_again else 0
        if kind in (REPEATED, CONSTANT) and len(request) + len(answer) <= LONGEST_KEPT and len(self.kept) < KEPT:
            self.kept[form if kind == CONSTANT and form else request] = bytes(answer)

    def _exchange(self, data: bytes) -> bytes | bytearray:
        """A game is a hundred thousand of these: most answers come in one piece, and nothing is done that they can do
        without."""
        if self.broken:
            raise AgentCodeError(self.broken)
        try:
            self.worker.sendall(HEAD.pack(len(data)) + data)
            answer: bytes | bytearray = self.worker.recv(65536)
            while len(answer) < HEAD.size or len(answer) < HEAD.size + HEAD.unpack_from(answer)[0] <= LARGEST:
                more = self.worker.recv(1 << 20)
                if not more:
                    raise EOFError
                answer = bytearray(answer) if isinstance(answer, bytes) else answer
                answer += more
        except BlockingIOError:
            sys.stderr.write(TOO_LONG)
            sys.stderr.flush()
            os._exit(TIMED_OUT)
        except (OSError, EOFError):
            self.broken = "the process of the agent's code has ended"
            raise AgentCodeError(self.broken) from None
        if len(answer) != HEAD.size + HEAD.unpack_from(answer)[0]:
            self.broken = "the process of the agent's code answered too much, or what was not asked"
            raise AgentCodeError(self.broken)
        return answer

    def cpu_seconds(self) -> float:
        return self._told(b"c")

    def all_counted(self) -> bool:
        return self._told(b"a") > 0

    def _told(self, what: bytes) -> float:
        with self.thread_lock:
            self.host.sendall(what)
            return float(DOUBLE.unpack(self.host.recv(DOUBLE.size, socket.MSG_WAITALL))[0])


_links: list[Link] = []


def link() -> Link:
    if not _links:
        _links.append(Link())
    return _links[0]


# --- answers: the only place where bytes of the agent's sandbox are read ---------------------------------------


def read_answer(answer: bytes | bytearray) -> Any:
    """The frame's head, what kind it is, JSON."""
    try:
        value = decoded(str(answer[HEAD.size + 1 :], "utf-8"))
    except (ValueError, TypeError, KeyError, LookupError, ArithmeticError, RecursionError, AttributeError) as error:
        raise AgentCodeError(f"the answer of the agent's code cannot be read: {error}") from None
    if answer[HEAD.size] in (RESULT, REPEATED, CONSTANT):
        return value
    kind, text = [str(part)[:LONGEST_ERROR] for part in value] if _is_pair(value) else ("AgentCodeError", "")
    raise ERRORS.get(kind, AgentCodeError)(f"{kind}: {text}" if text else kind)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def tagged(found: dict[str, Any]) -> Any:
    kind, value = found["t"], found["v"]
    if kind == "tuple":
        return tuple(value)
    if kind == "dict":
        return {key: item for key, item in value}
    if kind == "set":
        return set(value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "complex":
        return complex(float(value[0]), float(value[1]))
    if kind == "array":
        return array(value, str(found["dtype"]), [int(n) for n in found["shape"]])
    if kind == "object":
        return (AgentCallable if found["callable"] is True else AgentObject)(int(value), str(found["class"])[:80])
    raise ValueError(f"unknown type {kind!r:.40}")


def array(data: str, dtype: str, shape: list[int]) -> Any:
    """Without a shape, a single number."""
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject or kind.fields is not None or kind.subdtype is not None:
        raise ValueError("an array of objects")
    flat = numpy.frombuffer(base64.b64decode(data), kind)
    return flat.reshape(shape).copy() if shape else flat[0]


SCAN = json.JSONDecoder(object_hook=tagged).scan_once  # type: ignore[attr-defined]  # without a look for blanks


def decoded(text: str) -> Any:
    try:
        value, end = SCAN(text, 0)
    except StopIteration:
        raise ValueError("it is no JSON") from None
    if end != len(text):
        raise ValueError("something comes after its end")
    return value


# --- what the evaluation holds ------------------------------------------------------------------------------


def held(number: int) -> Any:
    """How a handle travels: the worker has a function of this name that finds the object."""
    return AgentObject(number, "object")


class AgentObject:
    def __init__(self, number: int, kind: str) -> None:
        self.__dict__.update(_number=number, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = link().ask("get", self._number, name)
        if isinstance(found, AgentObject):  # methods stay what they are; data is asked for every time
            self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        link().ask("set", self._number, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return held, (self._number,)

    def __repr__(self) -> str:
        return f"<{self._kind} in the agent's process>"

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise TypeError(f"the evaluation derives a class from the agent's {self._kind}, which lives in another process")


class AgentCallable(AgentObject):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return link().ask("call", self._number, args, kwargs)

    def many(self, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One call for each tuple of arguments, all in one message."""
        arguments = list(arguments)
        if not all(type(one) is tuple for one in arguments):
            raise TypeError("many() takes a list with a tuple of arguments for each call")
        answers = link().ask("many", self._number, arguments)
        if not isinstance(answers, list) or len(answers) != len(arguments):
            raise AgentCodeError("the agent's process did not answer every call")
        return answers


class AgentModule(types.ModuleType):
    @property
    def cpu_seconds(self) -> float:
        """CPU time that all processes of the agent's sandbox have used so far, measured by the host."""
        return link().cpu_seconds()

    @property
    def all_counted(self) -> bool:
        """Whether no process can take its time out of `cpu_seconds` by ending."""
        return link().all_counted()

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [str(one) for one in link().ask("names", self.__name__)]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = link().ask("get", self.__name__, name)
        if isinstance(found, AgentObject):
            self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            link().ask("set", self.__name__, name, value)
        super().__setattr__(name, value)


def stand_in(name: str, asks_again: bool = False) -> None:
    """Makes the module that is being imported one whose content is in the worker's sandbox."""
    link().asks_again = asks_again
    link().ask("import", name)
    sys.modules[name].__class__ = AgentModule
