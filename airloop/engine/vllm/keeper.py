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

    threading.Thread(target=follow, daemon=True).start()
    code = server.wait()
    end(server.pid, signal.SIGKILL)  # what it left behind: its engine is a process of its own
    return code


def main() -> int:
    """In a process below the one that is seen: whoever kills what a dead process has started, as Ray does with an
    actor's, kills its children and not theirs, and the server would be nobody's."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for who started us: it closes our end
        signal.signal(number, signal.SIG_IGN)
    if (keeper := os.fork()) == 0:
        os.setsid()
        return keep(sys.argv[1:])
    return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])


if __name__ == "__main__":
    sys.exit(main() & 0xFF)
