"""Guards a server process: run as a script with the server's command, it ends the server, with all its child processes,
when the process that started the guard ends, however that ended. It imports nothing of airloop, so that it runs before
anything can fail."""

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


def guard(command: list[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

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
    return code


def main() -> int:
    """The guard runs in a child process: Ray, for one, kills the children of a dead actor but not their children, and
    the server would be left running."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for who started us: it closes our end
        signal.signal(number, signal.SIG_IGN)
    if (guarded := os.fork()) == 0:
        os.setsid()
        return guard(sys.argv[1:])
    return os.waitstatus_to_exitcode(os.waitpid(guarded, 0)[1])


if __name__ == "__main__":
    sys.exit(main() & 0xFF)
