"""In the worker's sandbox: holds the agent's modules and answers what the grader's sandbox asks of them.

The agent's code shares this process and may do to it what it likes: it can only change its own answers. So nothing
here is trusted, and nothing here is needed for the score to be right. See agent_link.py for the other side.

A program of its own on the standard library: it is copied into the worker's sandbox.
"""

from __future__ import annotations

import ast
import base64
import builtins
import dis
import importlib
import inspect
import json
import math
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


def set_attribute(which: int | str, name: str, value: Any) -> None:
    kinds.clear()
    setattr(target(which), name, value)


def names(module: str) -> list[str]:
    found = sys.modules[module]
    return list(getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")])


ACTIONS: dict[str, Any] = {
    "import": lambda name: importlib.import_module(name) and None,
    "get": lambda which, name: getattr(target(which), name),
    "set": set_attribute,
    "call": lambda which, args, kwargs: objects[which](*args, **kwargs),
    "many": call_many,
    "names": names,
}


# --- calls that need not be repeated -----------------------------------------------------------------------
#
# An evaluation plays thousands of games, and a strategy without chance and without memory meets the same arguments
# again and again. Whether a function is such a one is read from its text: it uses its arguments, constants, other such
# functions and the few builtins and methods below, and nothing else. In doubt it is called every time. A wrong claim
# would only make the agent's own code deterministic, which it may be.

BUILTINS = frozenset(
    (abs, all, any, bool, dict, divmod, enumerate, filter, float, frozenset, int, isinstance, len, list, map, max, min,
     pow, range, reversed, round, set, sorted, str, sum, tuple, zip, IndexError, KeyError, TypeError, ValueError,
     ZeroDivisionError)
)  # fmt: skip
METHODS = frozenset(name for kind in (list, tuple, dict, set, str, int, float) for name in vars(kind) if name[0] != "_")
REACHING = {"globals", "vars", "setattr", "exec", "eval"}  # by which others could change what a function uses
FORBIDDEN = (
    ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Yield,
    ast.YieldFrom, ast.Delete, ast.NamedExpr,
)  # fmt: skip
CONSTANTS = (int, float, str, bool, complex, bytes, type(None))

kinds: dict[int, bytes] = {}  # of the results of functions, by their numbers


def is_repeatable(function: Any, asked: frozenset[str] = frozenset()) -> bool:
    """Whether the same arguments give the same answer, as far as the text shows. `asked`: who calls it."""
    if not isinstance(function, types.FunctionType) or function.__closure__ or function.__kwdefaults__:
        return False
    if not all(is_constant(value) for value in function.__defaults__ or ()):
        return False
    try:
        with open(function.__code__.co_filename, encoding="utf-8") as file:
            module = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    line, name = function.__code__.co_firstlineno, function.__name__
    found = [n for n in module.body if isinstance(n, ast.FunctionDef) and (n.name, n.lineno) == (name, line)]
    if len(found) != 1 or any(can_rebind(node) for node in ast.walk(module)):
        return False
    return all(is_harmless(node, found[0], function.__globals__, asked | {name}) for node in ast.walk(found[0]))


def uses_arguments(function: types.FunctionType) -> bool:
    code = function.__code__
    given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_cellvars}
    named = {instruction.argval for instruction in dis.get_instructions(code) if "FAST" in instruction.opname}
    flat = {name for value in named for name in (value if isinstance(value, tuple) else (value,))}
    return bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_cellvars or given & flat)


def can_rebind(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in REACHING)


def is_harmless(node: ast.AST, function: ast.FunctionDef, module: dict[str, Any], asked: frozenset[str]) -> bool:
    if isinstance(node, ast.Attribute):
        of = module.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return isinstance(node.ctx, ast.Load) and (node.attr in METHODS or of is math)
    if isinstance(node, ast.FunctionDef):
        return not node.decorator_list and not (node is not function and (node.args.defaults or node.args.kw_defaults))
    if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
        return not isinstance(node, FORBIDDEN)
    if node.id not in module:
        return node.id in own_names(function) or getattr(builtins, node.id, None) in BUILTINS
    value = module[node.id]  # also where a name inside is the same: which of both is meant is not looked into
    return value is math or is_constant(value) or node.id in asked or is_repeatable(value, asked)


def own_names(function: ast.FunctionDef) -> set[str]:
    """Arguments and what is assigned, the function's and those of functions inside it."""
    nodes = list(ast.walk(function))
    inner = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node is not function}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    caught = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    return inner | stored | caught | {node.arg for node in nodes if isinstance(node, ast.arg)}


def is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(is_constant(item) for item in value)
    return type(value) in CONSTANTS


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
    """ "e" and an error, or a result: "r", or "R" if the same call has it again, or "C" if any call of it has."""
    try:
        result = ACTIONS[request[0]](*request[1:])
        kind = kind_of_result(request[1]) if request[0] == "call" else b"r"
        if type(result) is int:
            return b"%c%d" % (kind, result)
        return kind + json.dumps(result if type(result) in PLAIN else encoded(result)).encode()
    except BaseException as error:  # SystemExit too: the agent's code does not end this process politely
        doing = f"{request[1].replace('.', '/')}.py cannot be imported: " if request[0] == "import" else ""
        return b"e" + json.dumps([type(error).__name__, f"{doing}{error}{where(error)}"]).encode()


def kind_of_result(which: int) -> bytes:
    if which not in kinds:
        function = objects[which]
        kinds[which] = b"r" if not is_repeatable(function) else b"R" if uses_arguments(function) else b"C"
    return kinds[which]


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
