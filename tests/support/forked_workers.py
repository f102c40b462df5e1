"""pytest-xdist's workers, forked from one process that has imported all test modules (collected.py): each would compile
them, and import torch and transformers, on its own, half a minute of a core. All else is xdist's: a worker that crashes
is named with its test, and another one is forked."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_base, gateway_io

from airloop.forkserver import CannotFork, ForkServer, SharedForked

ASKED = "AIRLOOP_COLLECT"  # in the server's environment: the paths whose tests are wanted


def fork_workers(config: pytest.Config) -> None:
    """In the controller, before it starts any. Where nothing can be forked, workers are started as ever."""
    # What has asked for its GPUs cannot be forked; another version of execnet may have no such class.
    if os.path.exists("/dev/nvidia0") or not hasattr(gateway_io, "Popen2IOMaster"):
        return
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]))
    alone = {"TOKENIZERS_PARALLELISM": "false"}  # tokenizers that test modules make start no threads
    files = sorted({asked.partition("::")[0] for asked in config.args})
    env = {**os.environ, **alone, "PYTHONPATH": path, ASKED: json.dumps(files)}
    try:
        server = ForkServer(["support.collected"], env)
    except (CannotFork, ChildProcessError) as why:
        warning = pytest.PytestWarning(f"workers are started one by one, not forked: {why}")
        config.issue_config_time_warning(warning, stacklevel=2)
        return
    lock = threading.RLock()

    class ForkedIO(gateway_base.Popen2IO):
        """As execnet's own: a worker's pipes, and what several threads may wait for."""

        def __init__(self, args: list[str], execmodel: Any) -> None:
            (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
            with lock:
                started = server.start("support.collected:work", [], [theirs_in, theirs_out, 2], os.environ)
            self.worker = SharedForked(started, lock)
            os.close(theirs_in)
            os.close(theirs_out)
            super().__init__(os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb"), execmodel)

        def wait(self) -> int:
            return self.worker.wait()

        def kill(self) -> None:
            self.worker.kill()

    was = gateway_io.Popen2IOMaster
    gateway_io.Popen2IOMaster = ForkedIO  # type: ignore[assignment, misc]

    def as_it_was() -> None:
        gateway_io.Popen2IOMaster = was  # type: ignore[misc]
        server.close()

    config.add_cleanup(as_it_was)
