"""The processes of a hypothesis' runs. On a machine without GPUs they are forked from one that has imported everything
(airloop/forkserver.py): a run begins without the seconds in which each would import it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airloop.forkserver import Forked, ForkServer
from airloop.launch import local

MODULE = "airloop_lab.hypothesis_worker"


class Worker:
    """One run's process. It never outlives us: it watches the pipe that it was started with."""

    def __init__(self, process: Forked | subprocess.Popen[bytes], held: int) -> None:
        self._process = process
        self._held = held  # never written to: its end tells the worker that we are gone

    def ended(self) -> bool:
        return self._process.poll() is not None

    def ask_to_stop(self) -> None:
        if not self.ended():
            self._process.send_signal(signal.SIGINT)

    def end(self, wait_s: float = 0.0) -> None:
        """By itself, if it does so in time."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._held)


class Workers:
    def __init__(self, forked: bool) -> None:
        """`forked`: where that can be. What has asked for its GPU cannot be forked, so with GPUs each is started."""
        self._forked = forked
        self._server: ForkServer | None = None

    def prepare(self) -> None:
        """Import what every run would import."""
        if self._forked and self._server is None:
            self._server = local.fork_server(MODULE)

    def start(self, run: Path, environment: Mapping[str, str]) -> Worker:
        stdin, held = os.pipe()
        try:
            with (run / "output.txt").open("ab") as output:
                return Worker(self._process(run, environment, [stdin, output.fileno(), output.fileno()]), held)
        except BaseException:
            os.close(held)
            raise
        finally:
            os.close(stdin)

    def _process(self, run: Path, environment: Mapping[str, str], files: list[int]) -> Forked | subprocess.Popen[bytes]:
        """A terminal's Ctrl-C comes to us alone, and we hand it on once."""
        if self._server is not None:
            try:
                return self._server.start(f"{MODULE}:main", [str(run)], files, environment)
            except OSError:  # it is gone
                self._server = None
        stdin, stdout, stderr = files
        command = [sys.executable, "-m", MODULE, str(run)]
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(environment), start_new_session=True
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
