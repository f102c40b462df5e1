"""A busy machine: processes that do nothing but compute, for as long as something is tried beside them; or only what
they would leave of a core, which takes none of the time of the tests beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from support.warm_process import Process

# On two cores each of nine processes has less than a quarter of one.
RUNS_S, STANDS_S = 0.010, 0.035


@contextlib.contextmanager
def busy_processes(count: int = 8, core: int | None = None) -> Iterator[None]:
    """`core`: all of them on that one, each in a session of its own, as the kernel may weigh what is in one session as
    one process. Otherwise they take the whole machine, which no test beside this one may be judged by."""
    if core is None and "PYTEST_XDIST_WORKER" in os.environ:
        raise RuntimeError("other tests run beside this one: mark it `alone`, and run it with -n 0 as `make soak` does")
    pinned = "" if core is None else f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    command = [sys.executable, "-c", f"{pinned}while True: pass"]
    running = [subprocess.Popen(command, start_new_session=core is not None) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def wait_starved(process: Process) -> int:
    """Its exit code. As it would beside eight busy processes, it stands still most of the time."""
    try:
        while process.poll() is None:
            time.sleep(RUNS_S)
            process.send_signal(signal.SIGSTOP)
            time.sleep(STANDS_S)
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
    return process.wait()
