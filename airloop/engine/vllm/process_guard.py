"""Guards a server process: run as a script with the server's command, it ends the server, with all its child processes,
when the process that started the guard ends, however that ended. What the server prints is passed on without keys. It
imports nothing of airloop but the file that knows keys, so that it runs before anything can fail."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

GRACE_S = 5.0  # between asking it to end and ending it


def end(group: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


def find_without_keys() -> Callable[[str], str]:
    spec = importlib.util.spec_from_file_location("keys", Path(__file__).parents[2] / "text" / "keys.py")
    assert spec is not None and spec.loader is not None
    keys = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(keys)
    found: Callable[[str], str] = keys.without_keys
    return found


def pass_on(output: IO[bytes], without_keys: Callable[[str], str]) -> None:
    """To the end, also where nothing more can be written: a server that nobody reads from would stand still."""
    for line in output:
        with contextlib.suppress(OSError):
            os.write(1, without_keys(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))


def guard(command: list[str]) -> int:
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert server.stdout is not None
    printing = threading.Thread(target=pass_on, args=(server.stdout, find_without_keys()), daemon=True)
    printing.start()

    def end_with_parent() -> None:
        while os.read(0, 4096):  # until the parent process closes the other end
            pass
        end(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_S)
        end(server.pid, signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    code = server.wait()
    end(server.pid, signal.SIGKILL)  # processes that it left running: its engine is a process of its own
    printing.join(GRACE_S)
    return code


def main() -> int:
    """The guard runs in a child process: Ray, for one, kills the children of a dead actor but not their children, and
    the server would be left running."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for who started us: it closes our end
        # Not SIG_IGN, which the server would inherit: without a handler of its own it would not hear that it is to end.
        signal.signal(number, lambda *_: None)
    if (guarded := os.fork()) == 0:
        os.setsid()
        return guard(sys.argv[1:])
    return os.waitstatus_to_exitcode(os.waitpid(guarded, 0)[1])


if __name__ == "__main__":
    sys.exit(main() & 0xFF)
