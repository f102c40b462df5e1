"""Runs one episode of an agent's function, in a process that worker.py has forked: builds the function's arguments,
calls it, and reports its score or its error. Imports nothing of airloop, as worker.py does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import random
import ssl
import sys
import traceback
from typing import Any, NoReturn

DEPTH = 64  # of errors that were raised from errors
TEMPORARY = 75  # the exit code of a program that says: not my fault, try again (sysexits.h)
# A connection that was lost, whatever the error was wrapped into. Whether it was the one to the policy, the run knows:
# an action of the agent's own may have led anywhere.
LOST_ERRORS = (ConnectionError,)
LOST_ERROR_NAMES = {"APIConnectionError", "APITimeoutError", "InternalServerError"}
INFRA_ERROR_NAME = "InfraError"  # what an agent itself calls no fault of its own


def run_episode(path: str, name: str, order: dict[str, Any], result_fd: int) -> NoReturn:
    os.environ.update(order["env"])
    reseed(int(order["env"].get("AIR_SEED", 0)))
    result = outcome(path, name, order["task"], order.get("given"))
    sys.stdout.flush()
    sys.stderr.flush()
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(result_fd, data) :]
    os._exit(0)


def outcome(path: str, name: str, task: dict[str, Any], given: list[str] | None = None) -> dict[str, Any]:
    """The function's score, or why there is none. `given`: for a scorer, the folder of the agent's files and what the
    agent printed."""
    try:
        function = load(path, name)
    except BaseException as error:
        return {"defect": f"{path} cannot be imported: {describe_error(error, path)}"}
    if function is None:
        return {"defect": f"{path} has no function {name!r}"}
    try:
        places, names = scorer_arguments(function, task, given) if given else arguments(function, task)
        returned = function(*places, **names)
        value = asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned
        return {"score": as_score(value)}
    except SystemExit as error:
        kind = "infra" if error.code == TEMPORARY else "crash"
        return {kind: f"it ended by sys.exit({error.code!r}) instead of returning a score"}
    except BadScore as error:
        return {"defect": str(error)}
    except BaseException as error:
        traceback.print_exc()
        return {kind_of(error): describe_error(error, path)}


def is_infra(error: BaseException | None) -> bool:
    return kind_of(error) != "crash"


def kind_of(error: BaseException | None) -> str:
    """Of the error, or of one that it was raised from: crash, infra (a failure of the infrastructure), or lost (a
    connection: such a failure, perhaps)."""
    found = "crash"
    for _ in range(DEPTH):
        if error is None:
            break
        names = {k.__name__ for k in type(error).__mro__}
        if INFRA_ERROR_NAME in names:
            return "infra"
        if isinstance(error, LOST_ERRORS) or names & LOST_ERROR_NAMES:
            found = "lost"
        error = error.__cause__ or error.__context__
    return found


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
    library, later = client_library(), inspect.iscoroutinefunction(inspect.unwrap(function))
    if library.__name__ != "openai":
        client = library.AsyncClient() if later else library.Client()
    else:
        client = openai_client(library, later)
    return ((task,), {"client": client}) if by_name else ((task, client), {})


def openai_client(library: Any, later: bool) -> Any:
    """The endpoint speaks plain HTTP. By default each client would first read all certificates that the machine trusts:
    twenty to fifty milliseconds of CPU, for every episode."""
    none = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if later:
        return library.AsyncOpenAI(http_client=library.DefaultAsyncHttpxClient(verify=none))
    return library.OpenAI(http_client=library.DefaultHttpxClient(verify=none))


def scorer_arguments(function: Any, task: dict[str, Any], given: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As many as it takes of the task, the folder with the agent's files, and what the agent printed."""
    taken = inspect.signature(function).parameters.values()
    by_place = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (task, pathlib.Path(given[0]), given[1])[: len(by_place)], {}


def client_library() -> Any:
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
    except (TypeError, ValueError, OverflowError):
        raise BadScore(f"{what} that the function returned is {value!r}, and must be a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise BadScore(f"{what} that the function returned is {number}")
    return number


def describe_error(error: BaseException, path: str) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")
