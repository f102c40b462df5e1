"""Has imported all test modules as soon as it is imported itself: what workers are forked from (forked_workers.py)."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

import pytest
from support import warm_process
from support.forked_workers import ASKED
from support.warm_ranks import WarmServer

from airloop.envs.tune import pool
from airloop.forkserver import CannotFork
from airloop.launch import local

PATIENCE_S = 20.0
FITTING = ("airloop.envs.tune.worker", "airloop.envs.tune.fitting")  # what its server would import


class ImportsOnly:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[Any]:
        """No tests: each worker looks for them."""
        return []


def collect(paths: list[str]) -> None:
    """What cannot be imported is told by the workers, which try once more."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        pytest.main(["--collect-only", "-n", "0", "-p", "no:cacheprovider", *paths], plugins=[ImportsOnly()])
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
        os.close(out)
        os.close(nowhere)
    for module in (*warm_process.MODULES, *FITTING):
        importlib.import_module(module)
    with contextlib.suppress(ImportError, AttributeError):  # a name of Hypothesis' own that may not last
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants()  # or each worker looks through the text of all our modules
    until = time.monotonic() + PATIENCE_S  # the thread that looks how long templates take ends when there are none
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.05)


def work() -> None:
    """In a new worker: what execnet sends. The servers of the processes, the ranks and the fits that its tests fork are
    forked now, while there is a single thread: later each would be started, and import everything once more."""
    with contextlib.suppress(CannotFork):
        warm_process.warm_server()
        local.ForkServer = WarmServer  # type: ignore[assignment, misc]
        pool.SERVER._own(os.environ)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


collect(json.loads(os.environ.pop(ASKED)))
