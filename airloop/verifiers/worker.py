"""Runs one environment of the library `verifiers`, any number of its episodes at once.

    python worker.py '{"name": "reverse-text", "folder": "", "args": {}}'

Requests come as lines of JSON on the standard input, answers leave on the standard output. With the files beside it, it
imports nothing of airloop: it runs in the environment's own interpreter. It ends with its parent process, and ends
whatever the environment has started.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import json
import os
import re
import sys
import threading
import time
import traceback
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
END_S = 5.0  # for episodes to release their resources, once the input has ended
PR_SET_CHILD_SUBREAPER = 36
A_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)\b")  # a variable that holds a secret


def load_beside(path: str) -> Any:
    """The module of a file beside this one, loaded by its path: airloop need not be installed here."""
    name = "air_" + os.path.basename(path)[:-3]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, os.path.join(HERE, path))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def main() -> None:
    del sys.path[0]  # where this file is: the library has the name of its folder
    setup = json.loads(sys.argv[1])
    requests, results = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what environments print must not mix with answers
    # Programs that came with the interpreter (uv, which v1's agents are started with) are found before any others.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    if setup["folder"]:  # also for processes of its own: a server of tools is started by its module's name
        sys.path.insert(0, setup["folder"])
        os.environ["PYTHONPATH"] = setup["folder"]
    programs_module().prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        with asyncio.Runner() as runner:
            run(runner.get_loop(), EpisodeServer(setup, requests, results))
        atexit._run_exitfuncs()
    finally:
        programs_module().end_orphans(set())
        os._exit(0)  # nothing is left to do, and to take such libraries apart takes seconds


def run(loop: asyncio.AbstractEventLoop, server: EpisodeServer) -> None:
    """Runs the server to its end. A sys.exit() in one episode ends that episode, and not the others."""
    serving = loop.create_task(server.run())
    while not serving.done():
        try:
            loop.run_until_complete(serving)
        except SystemExit:
            traceback.print_exc()


def programs_module(file: str = "worker.py") -> Any:
    """A module of airloop/programs: worker.py for processes, run_one.py for kinds of errors."""
    return load_beside(os.path.join("..", "programs", file))


class EpisodeServer:
    def __init__(self, setup: dict[str, Any], requests: int, results: int) -> None:
        self.setup, self.requests, self.results = setup, requests, results
        self.running: dict[str, asyncio.Task[None]] = {}  # by the request's id
        self.environment: Any = None
        self.failed: dict[str, Any] = {}  # why it could not be loaded

    async def run(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=self.listen, daemon=True).start()
        await self.over.wait()
        for task in self.running.values():
            task.cancel()
        await asyncio.gather(*self.running.values(), return_exceptions=True)
        if self.environment is not None:
            await self.environment.close()

    def listen(self) -> None:
        """Reads requests in a thread, so that the end of the input is noticed even while the event loop is busy."""
        with os.fdopen(self.requests, encoding="utf-8") as lines:
            for line in lines:
                self.loop.call_soon_threadsafe(self.handle_request, json.loads(line))
        self.loop.call_soon_threadsafe(self.over.set)
        time.sleep(END_S)
        programs_module().end_orphans(set())
        os._exit(0)

    def handle_request(self, request: dict[str, Any]) -> None:
        if "kill" in request:
            if request["kill"] in self.running:
                self.running[request["kill"]].cancel()
            return
        self.running[request["id"]] = self.loop.create_task(self.answer(request))

    async def answer(self, request: dict[str, Any]) -> None:
        try:
            result = self.load() or await self.do(request)
        except asyncio.CancelledError:
            result = {"infra": "it was told to end"}
        except BaseException as error:
            traceback.print_exc()
            # What the environment itself does not catch is its ending, unless it is trouble on the way.
            result = {"infra" if programs_module("run_one.py").is_infra(error) else "crash": describe_error(error)}
        self.running.pop(request["id"], None)
        self.send({"id": request["id"], "code": 0, "result": result, "printed": ""})

    async def do(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "describe":
            return {"described": self.environment.describe()}
        if request["do"] == "tasks":
            return {"rows": self.environment.rows(request["most"])}
        if request["do"] == "score":
            return await score_group(self.environment, request["episodes"])
        if request["do"] == "forget":
            await self.environment.forget(request["episodes"])
            return {}
        result: dict[str, Any] = await self.environment.play(request)
        return result

    def load(self) -> dict[str, Any]:
        """Loads the environment; why it cannot be used, empty if it can. Not in a thread: environments set signal
        handlers."""
        if self.environment is None and not self.failed:
            try:
                self.environment = open_environment(self.setup["name"], self.setup["args"])
            except BaseException as error:
                traceback.print_exc()
                text = describe_error(error)
                lacking = [name for name in dict.fromkeys(A_KEY.findall(text)) if not os.environ.get(name)]
                self.failed = {"defect": text, "lacks": lacking}
        return self.failed

    def send(self, message: dict[str, Any]) -> None:
        try:
            data = json.dumps(message).encode() + b"\n"
        except (TypeError, ValueError) as error:  # a row with an image, say
            data = json.dumps({**message, "result": {"defect": f"it cannot be told as JSON: {error}"}}).encode() + b"\n"
        programs_module().write_all(self.results, data)


def open_environment(name: str, args: dict[str, Any]) -> Any:
    """Of either interface: a module with load_environment, where the library has that, or one with a Taskset."""
    if importlib.util.find_spec("verifiers") is None:
        raise ModuleNotFoundError(f"{sys.executable} does not have the library verifiers")
    plain = name.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
    first = importlib.util.find_spec(plain) is not None and importlib.util.find_spec("verifiers.envs") is not None
    if first and hasattr(importlib.import_module(plain), "load_environment"):
        return load_beside("v0.py").V0(plain, args)
    if importlib.util.find_spec("verifiers.v1") is None:
        raise ModuleNotFoundError(f"{sys.executable} has no module {plain!r} with load_environment()")
    sys.path.append(os.path.join(HERE, "harnesses"))
    return load_beside("v1.py").V1(plain, args)


async def score_group(environment: Any, episodes: list[str]) -> dict[str, Any]:
    """A group that cannot be scored is a failure of the environment: none of its episodes is at fault."""
    try:
        return {"scores": await environment.score(episodes)}
    except Exception as error:
        traceback.print_exc()
        return {"infra": f"the episodes of a task could not be scored together: {describe_error(error)}"}


def describe_error(error: BaseException) -> str:
    """The error and those it was raised from, as far as each adds something new."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 8:
        text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        if not parts or str(cause) not in parts[-1]:
            parts.append(text)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "; from ".join(parts)


if __name__ == "__main__":
    main()
