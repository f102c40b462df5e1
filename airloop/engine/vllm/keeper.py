"""Keeps a server: run as a script with its command, it ends when whoever started it does, however that ended, and takes
every process of the server along. Imports nothing of ours: it must be there before anything can fail."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0  # between asking it to end and ending it


def end(group: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


def keep(command: list[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def follow() -> None:
        while os.read(0, 4096):  # until nobody holds the other end any more
            pass
        end(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_S)
        end(server.pid, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for who started us: it closes our end
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=follow, daemon=True).start()
    code = server.wait()
    end(server.pid, signal.SIGKILL)  # what it left behind: its engine is a process of its own
    return code


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]) & 0xFF)
