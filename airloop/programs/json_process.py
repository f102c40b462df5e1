"""A child process that gets requests as lines of JSON and answers each when it is done; usable from any event loop."""

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
PRINTED_LIMIT = 4096  # characters of its standard error that are kept, the last ones
LOCAL_HOSTS = "127.0.0.1,localhost,::1"
RUN_KEYS = ("VLLM_API_KEY", "AIR_ADAPTERS_KEY", "AIR_REMOTE_KEY")  # keys of the run itself


class JsonLineProcess:
    """Started with the first request, and again with the next one if it has ended."""

    def __init__(self, command: Sequence[str], what: str) -> None:
        self._command, self._what = list(command), what
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[str, _PendingReply] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.printed = ""  # the end of its standard error

    def environ(self) -> dict[str, str]:
        """The environment variables it is started with: none of the run's own keys, for nobody else is to ask what the
        run asks."""
        env = {name: value for name, value in os.environ.items() if name not in RUN_KEYS}
        if self._command[0] != sys.executable:  # another environment, with libraries of its own
            env.pop("PYTHONPATH", None)
        return {**env, **no_proxy_variables()}

    async def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; {"gone": True} and the exit code where the process ended instead. A request that is cancelled
        here is cancelled in the process as well."""
        id, pending = str(next(self._numbers)), _PendingReply(asyncio.get_running_loop())
        self._pending[id] = pending
        try:
            pending.process = self._send({**message, "id": id})
            return await pending.future
        except asyncio.CancelledError:
            self.notify({"kill": id})
            raise
        finally:
            self._pending.pop(id, None)

    def notify(self, message: Mapping[str, Any]) -> None:
        """Sends a message that needs no answer. Without a running process nothing is sent: a new one would not know
        what it is about."""
        with contextlib.suppress(InfraError):
            self._send({**message, "id": str(next(self._numbers))}, start=False)

    def request_blocking(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """As `request`, for callers that cannot await; TimeoutError if it takes longer."""
        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop that runs
            return pool.submit(asyncio.run, asyncio.wait_for(self.request(message), timeout_s)).result()

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

    def _send(self, message: Mapping[str, Any], start: bool = True) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                if not start:
                    return None
                process = self._process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(message).encode() + b"\n")
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
            reply = json.loads(line)
            if "id" in reply and (pending_reply := self._pending.get(reply["id"])):
                pending_reply.resolve(reply)
        code = process.wait()
        for pending in list(self._pending.values()):
            if pending.process in (None, process):
                pending.resolve({"code": code, "result": {}, "printed": "", "gone": True})

    def _keep_printed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        while data := os.read(process.stderr.fileno(), 65536):
            self.printed = (self.printed + data.decode(errors="replace"))[-PRINTED_LIMIT:]


class _PendingReply:
    """The future of one request's answer, in the event loop that asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.future = loop, loop.create_future()
        self.process: subprocess.Popen[bytes] | None = None  # that the request was sent to

    def resolve(self, reply: dict[str, Any]) -> None:
        def resolve() -> None:
            if not self.future.done():
                self.future.set_result(reply)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(resolve)


def no_proxy_variables() -> dict[str, str]:
    """Environment variables that keep requests to this machine from a proxy."""
    return {name: ",".join(filter(None, [os.environ.get(name), LOCAL_HOSTS])) for name in ("NO_PROXY", "no_proxy")}
