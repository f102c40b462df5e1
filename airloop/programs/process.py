"""A process beside ours that is given orders as lines of JSON and answers each when it is done: from any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airloop.errors import AirError, InfraError

END_S = 10.0  # from being told to end until it is killed
KEPT = 4096  # characters of what it printed, the last ones
LOCAL = "127.0.0.1,localhost,::1"
RUNS = ("VLLM_API_KEY", "AIR_ADAPTERS_KEY", "AIR_REMOTE_KEY")  # what the run itself is known by


class OrderedProcess:
    """Started with the first order, and anew with the next one if it has ended."""

    def __init__(self, command: Sequence[str], what: str) -> None:
        self._command, self._what = list(command), what
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.printed = ""  # the end of what it has printed by itself

    def environ(self) -> dict[str, str]:
        """Its variables: nobody else is to reach what the run itself asks."""
        env = {name: value for name, value in os.environ.items() if name not in RUNS}
        if self._command[0] != sys.executable:  # another environment, with libraries of its own
            env.pop("PYTHONPATH", None)
        return {**env, **direct()}

    async def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers; {"gone": True} with its code where it ended instead. Cancelled, it is told so."""
        id, waiting = str(next(self._numbers)), _Waiting(asyncio.get_running_loop())
        self._waiting[id] = waiting
        try:
            waiting.process = self._send({**order, "id": id})
            return await waiting.future
        except asyncio.CancelledError:
            self.tell({"kill": id})
            raise
        finally:
            self._waiting.pop(id, None)

    def tell(self, order: Mapping[str, Any]) -> None:
        """What needs no answer, and no process where there is none: it knows of nothing that came before it."""
        with contextlib.suppress(InfraError):
            self._send({**order, "id": str(next(self._numbers))}, start=False)

    def ask_now(self, order: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The same where nobody can await; TimeoutError if it takes longer."""
        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop that runs
            return pool.submit(asyncio.run, asyncio.wait_for(self.ask(order), timeout_s)).result()

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

    def _send(self, order: Mapping[str, Any], start: bool = True) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                if not start:
                    return None
                process = self._process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            except OSError as error:
                raise InfraError(f"{self._what} is gone: {error}") from error
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environ(), start_new_session=True
            )
        except OSError as error:
            raise AirError(
                f"{self._command[0]} cannot be started: {error}.", "correct args = { python = … }."
            ) from error
        for listens in (self._listen, self._keep_printed):
            threading.Thread(target=listens, args=(process,), daemon=True, name=self._what).start()
        return process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if "id" in said and (found := self._waiting.get(said["id"])):
                found.resolve(said)
        code = process.wait()
        for waiting in list(self._waiting.values()):
            if waiting.process in (None, process):
                waiting.resolve({"code": code, "result": {}, "printed": "", "gone": True})

    def _keep_printed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        while data := os.read(process.stderr.fileno(), 65536):
            self.printed = (self.printed + data.decode(errors="replace"))[-KEPT:]


class _Waiting:
    """For the answer to one order, in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.future = loop, loop.create_future()
        self.process: subprocess.Popen[bytes] | None = None  # that was given the order

    def resolve(self, said: dict[str, Any]) -> None:
        def resolve() -> None:
            if not self.future.done():
                self.future.set_result(said)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(resolve)


def direct() -> dict[str, str]:
    """Variables by which this machine is reached without a proxy."""
    return {name: ",".join(filter(None, [os.environ.get(name), LOCAL])) for name in ("NO_PROXY", "no_proxy")}
