"""The process that an agent's episodes are forked from, and who gives it orders: from any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.rollout.program import ProgramCrashed

WORKER = Path(__file__).with_name("worker.py")
END_S = 10.0  # from being told to end until it is killed
LOCAL = "127.0.0.1,localhost,::1"
SHOWN = 400  # characters of what a program printed last
FIX = "correct the agent's file; `air tasks show` plays its first request."


class Workers:
    """Episodes of one function, as many at once as are asked for."""

    def __init__(self, path: Path, function: str, python: str = "") -> None:
        self._command = [python or sys.executable, str(WORKER), str(path), function]
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[dict[str, Any]]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    async def run(self, task: Mapping[str, Any], variables: Mapping[str, str]) -> float | dict[str, float]:
        """The score that the function gave. AirError where its file cannot be used."""
        loop = asyncio.get_running_loop()
        id, future = str(next(self._numbers)), loop.create_future()
        self._waiting[id] = loop, future
        try:
            self._send({"id": id, "task": task, "env": {**variables, "NO_PROXY": LOCAL, "no_proxy": LOCAL}})
            ended = await future
        except asyncio.CancelledError:
            self._send({"kill": id})
            raise
        finally:
            self._waiting.pop(id, None)
        return _score(ended)

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, order: Mapping[str, Any]) -> None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                if "kill" in order:
                    return
                process = self._process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            except OSError as error:
                raise InfraError(f"the process that starts the agent's programs is gone: {error}") from error

    def _start(self) -> subprocess.Popen[bytes]:
        env = dict(os.environ)
        if self._command[0] != sys.executable:  # another environment, with libraries of its own
            env.pop("PYTHONPATH", None)
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
            )
        except OSError as error:
            raise AirError(
                f"{self._command[0]} cannot be started: {error}.", "correct args = { python = … }."
            ) from error
        threading.Thread(target=self._listen, args=(process,), daemon=True, name="agent programs").start()
        return process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if "id" in said and (found := self._waiting.get(said["id"])):
                _resolve(*found, said)
        code = process.wait()
        for loop, future in list(self._waiting.values()):
            _resolve(loop, future, {"code": code, "result": {}, "printed": "", "gone": True})


def _resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[dict[str, Any]], said: dict[str, Any]) -> None:
    def resolve() -> None:
        if not future.done():
            future.set_result(said)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(resolve)


def _score(ended: Mapping[str, Any]) -> float | dict[str, float]:
    result, code = ended["result"], ended["code"]
    printed = ended["printed"].strip()[-SHOWN:]
    after = f"; it printed last: {printed}" if printed else ""
    if "score" in result:
        return result["score"]
    if "defect" in result:
        raise AirError(f"The agent's program: {result['defect']}.", FIX)
    if "crash" in result:
        raise ProgramCrashed(result["crash"])
    if "infra" in result:
        raise InfraError(f"the agent's program: {result['infra']}")
    if ended.get("gone"):
        raise InfraError(f"the process that starts the agent's programs ended with code {code}")
    if code < 0:
        raise InfraError(f"the agent's program was ended by signal {-code}{after}")
    raise ProgramCrashed(f"it ended with code {code} and without a score{after}")
