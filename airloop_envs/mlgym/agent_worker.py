"""In the worker's world: holds the agent's modules and answers what the grader's world asks of them.

The agent's code shares this process and may do to it what it likes: it can only change its own answers. So nothing
here is trusted, and nothing here is needed for the score to be right. See agent_link.py for the other side.

A program of its own on the standard library: it is copied into the worker's world.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import socket
import struct
import sys
import traceback
import types
from typing import Any

PLACE = "/run/agent_link"
HEAD = struct.Struct("=I")
PLAIN = (int, float, str, bool, type(None))

objects: dict[int, Any] = {}  # kept for as long as the grader may ask for them, which is always


def held(number: int) -> Any:
    return objects[number]


# --- what is asked ------------------------------------------------------------------------------------------


def target(which: int | str) -> Any:
    return sys.modules[which] if isinstance(which, str) else objects[which]


def call_many(which: int, arguments: list[tuple[Any, ...]]) -> list[Any]:
    function = objects[which]
    return [function(*args) for args in arguments]


def names(module: str) -> list[str]:
    found = sys.modules[module]
    return list(getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")])


ACTIONS: dict[str, Any] = {
    "import": lambda name: importlib.import_module(name) and None,
    "get": lambda which, name: getattr(target(which), name),
    "set": lambda which, name, value: setattr(target(which), name, value),
    "call": lambda which, args, kwargs: objects[which](*args, **kwargs),
    "many": call_many,
    "names": names,
}


# --- what is answered ---------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """JSON, with a tag for what JSON does not know: {"t": type, "v": value}."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, tuple):
        return {"t": "tuple", "v": [encoded(item) for item in value]}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        return {"t": "dict", "v": [[encoded(key), encoded(item)] for key, item in value.items()]}
    if isinstance(value, set | frozenset):
        return {"t": "set", "v": [encoded(item) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"t": "bytes", "v": base64.b64encode(value).decode()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        data = base64.b64encode(value.tobytes()).decode()
        return {"t": "array", "v": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    for base in (bool, int, float, str):  # of a subclass only the value travels
        if isinstance(value, base):
            return base(value)
    if isinstance(value, complex):
        return {"t": "complex", "v": [value.real, value.imag]}
    objects[id(value)] = value
    name = getattr(value, "__name__", kind.__name__)
    return {"t": "object", "v": id(value), "class": name, "callable": callable(value)}


def answer(request: tuple[Any, ...]) -> bytes:
    try:
        result = ACTIONS[request[0]](*request[1:])
        if type(result) is int:
            return b"r%d" % result
        return b"r" + json.dumps(result if type(result) in PLAIN else encoded(result)).encode()
    except BaseException as error:  # SystemExit too: the agent's code does not end this process politely
        doing = f"{request[1].replace('.', '/')}.py cannot be imported: " if request[0] == "import" else ""
        return b"e" + json.dumps([type(error).__name__, f"{doing}{error}{where(error)}"]).encode()


def where(error: BaseException) -> str:
    """The last line of the agent's own code that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(os.getcwd() + "/")]
    return f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def serve(link: socket.socket) -> None:
    while True:
        data: bytes | bytearray = link.recv(65536)
        while len(data) < HEAD.size or len(data) < HEAD.size + HEAD.unpack_from(data)[0]:
            more = link.recv(1 << 20)
            if not more:
                return
            data = bytearray(data) if isinstance(data, bytes) else data
            data += more
        try:
            request = pickle.loads(memoryview(data)[HEAD.size :])
        except Exception as error:
            said = f"the evaluation passes an argument of a type that is not known here: {error}"
            reply = b"e" + json.dumps(["TypeError", said]).encode()
        else:
            reply = answer(request)
        link.sendall(HEAD.pack(len(reply)) + reply)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
        host.connect(PLACE)
        _, fds, _, _ = socket.recv_fds(host, 8, 1)
    other = types.ModuleType("agent_link")  # what the grader's pickles name
    other.held = held  # type: ignore[attr-defined]
    sys.modules["agent_link"] = other
    sys.path[0] = os.getcwd()
    serve(socket.socket(fileno=fds[0]))


if __name__ == "__main__":
    main()
