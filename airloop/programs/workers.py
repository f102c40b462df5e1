"""The process that an agent's episodes are forked from, and who gives it orders: from any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.rollout.program import ProgramCrashed

WORKER = Path(__file__).with_name("worker.py")
END_S = 10.0  # from being told to end until it is killed
LOCAL = "127.0.0.1,localhost,::1"
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
LEAST_SECRET = 8  # characters: shorter ones are words
SHOWN = 400  # characters of what a program printed last
AGENT, SCORER = "the agent's program", "the scorer"
FIXES = {AGENT: "correct the agent's file; `air tasks show` plays its first request.", SCORER: "correct the scorer."}


class Workers:
    """Episodes of one function, as many at once as are asked for."""

    def __init__(self, path: Path, function: str, python: str = "", who: str = AGENT) -> None:
        self._who = who
        self._command = [python or sys.executable, str(WORKER), str(path), function]
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    async def run(
        self, task: Mapping[str, Any], variables: Mapping[str, str], given: Sequence[str] = ()
    ) -> float | dict[str, float]:
        """The score that the function gave. AirError where its file cannot be used. `given`: for a scorer, the folder
        with an agent's files, and what the agent printed."""
        id, waiting = str(next(self._numbers)), _Waiting(asyncio.get_running_loop())
        self._waiting[id] = waiting
        proxies = {name: ",".join(filter(None, [os.environ.get(name), LOCAL])) for name in ("NO_PROXY", "no_proxy")}
        try:
            waiting.process = self._send({"id": id, "task": task, "env": {**variables, **proxies}, "given": given})
            ended = await waiting.future
        except asyncio.CancelledError:
            with contextlib.suppress(InfraError):
                self._send({"kill": id})
            raise
        finally:
            self._waiting.pop(id, None)
        return _score({**ended, "printed": masked(ended["printed"], variables)}, variables, self._who)

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

    def _send(self, order: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                if "kill" in order:
                    return None
                process = self._process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            except OSError as error:
                raise InfraError(f"the process that starts {self._who} is gone: {error}") from error
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        # A library that makes a client when it is imported must not make one with the user's own key. A scorer may have
        # a model to ask, which is not the policy.
        own = ("OPENAI_", "ANTHROPIC_") if self._who == AGENT else ()
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)}
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
                found.resolve(said)
        code = process.wait()
        for waiting in list(self._waiting.values()):
            if waiting.process in (None, process):
                waiting.resolve({"code": code, "result": {}, "printed": "", "gone": True})


class _Waiting:
    """For the end of one episode, in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.future = loop, loop.create_future()
        self.process: subprocess.Popen[bytes] | None = None  # that was told to start it

    def resolve(self, said: dict[str, Any]) -> None:
        def resolve() -> None:
            if not self.future.done():
                self.future.set_result(said)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(resolve)


def masked(text: str, variables: Mapping[str, str]) -> str:
    """Without any key that a program could know: what it says of its end is kept with the run."""
    known = {**os.environ, **variables}
    secrets = {value for name, value in known.items() if len(value) >= LEAST_SECRET and SECRET.search(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _score(ended: Mapping[str, Any], variables: Mapping[str, str], who: str) -> float | dict[str, float]:
    result, code = ended["result"], ended["code"]
    printed = ended["printed"].strip()[-SHOWN:]
    after = f"; it printed last: {printed}" if printed else ""
    if "score" in result:
        return result["score"]
    if "defect" in result:
        raise AirError(f"{who.capitalize()}: {masked(result['defect'], variables)}.", FIXES[who])
    if "crash" in result:
        raise ProgramCrashed(masked(result["crash"], variables))
    if "infra" in result:
        raise InfraError(f"{who}: {masked(result['infra'], variables)}")
    if ended.get("gone"):
        raise InfraError(f"the process that starts {who} ended with code {code}")
    if code == -signal.SIGKILL:  # as a system does that is out of memory
        raise InfraError(f"{who} was killed{after}")
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    raise ProgramCrashed(f"it ended {how} and without a score{after}")
