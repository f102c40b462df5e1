"""`air` as a process of its own, for tests that kill it, signal it or read its pipes, without the seconds in which each
process imports torch and transformers: all are forked from one (airloop/forkserver.py)."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from airloop.forkserver import ForkServer
from airloop.launch import local
from airloop.launch.local import PRELOADED

WAIT_S = 300.0


class Process:
    """As subprocess.Popen has it. What is not asked for goes nowhere."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        stdout: bool = False,
        stderr: bool = False,
        interrupt: bool = True,
        code: str | None = None,
        server: ForkServer | None = None,
    ) -> None:
        """`air WORDS`, or `python -c CODE WORDS`. `interrupt`: Ctrl-C is not ignored, as for a background job.
        `server`: of another Python than ours (server_of)."""
        self.args = [str(word) for word in words]
        target, given = (AIR, self.args) if code is None else (RUN_CODE, [code, *self.args])
        pipes = [os.pipe() if wanted else None for wanted in (stdout, stderr)]
        nowhere = os.open(os.devnull, os.O_RDWR)
        files = [nowhere, *(pipe[1] if pipe else nowhere for pipe in pipes)]
        self._process = (server or warm_server()).start(
            target, given, files, os.environ if env is None else env, interrupt
        )
        for fd in {*files}:
            os.close(fd)
        self.stdout, self.stderr = (os.fdopen(pipe[0], encoding="utf-8") if pipe else None for pipe in pipes)
        self.pid, self.poll = self._process.pid, self._process.poll
        self.kill, self.send_signal = self._process.kill, self._process.send_signal

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def wait(self, timeout: float = WAIT_S) -> int:
        return self._process.wait(timeout)

    def communicate(self, timeout: float = WAIT_S) -> tuple[str, str]:
        """What it writes until it ends."""
        found = ["", ""]

        def read(at: int, stream: IO[str]) -> None:
            with stream:
                found[at] = stream.read()

        streams = [(at, stream) for at, stream in enumerate((self.stdout, self.stderr)) if stream]
        readers = [threading.Thread(target=read, args=given, daemon=True) for given in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[0], found[1]


def run(words: Sequence[object], timeout: float = WAIT_S, **given: Any) -> subprocess.CompletedProcess[str]:
    """To its end, as subprocess.run(…, capture_output=True, text=True)."""
    process = Process(words, stdout=True, stderr=True, **given)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


@functools.cache
def warm_server() -> ForkServer:
    return server_of(sys.executable)


def server_of(python: str) -> ForkServer:
    """Ends with this process. It finds this module, and this tree wherever it is called from."""
    tests = Path(__file__).parents[1]
    path, ours = os.environ.get("PYTHONPATH", ""), sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tests), str(tests.parent), path]))
    sys.executable = python
    try:
        server = ForkServer([*MODULES, __name__])
    finally:
        os.environ["PYTHONPATH"], sys.executable = path, ours
    atexit.register(server.close)
    return server


LLAMA = "transformers.models.llama.modeling_llama"
COMPILER = "torch._inductor.config"  # which torch imports, in two seconds, where algorithms shall be deterministic
MODULES = [*PRELOADED, "airloop.cli", "airloop.models.tiny", "matplotlib.pyplot", LLAMA, COMPILER]
AIR, RUN_CODE = f"{__name__}:air", f"{__name__}:run_code"


def air() -> None:
    """In the new process: `air WORDS`. The server of its ranks is forked now, while it has a single thread: later it
    would be started, and import everything once more."""
    from airloop import cli

    server = ForkServer(PRELOADED)
    local.ForkServer = lambda modules: server  # type: ignore[assignment, misc]
    cli.main()


def run_code() -> None:
    """In the new process: `python -c CODE WORDS`."""
    code = sys.argv.pop(1)
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
