"""Ranks on this machine. Those on the CPU are forked from one process that has imported everything; those on GPUs are
started anew (C7)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from typing import IO, Literal

from airloop.forkserver import CannotFork, Forked, ForkServer
from airloop.launch.base import Order, Tell

# What every rank imports.
PRELOADED = ("airloop.rank", "airloop.training", "airloop.engine.embedded", "torch.distributed.fsdp")


class LocalLauncher:
    """Implements Launcher. Each rank has a pipe as its stdin that is never written to: its end tells the rank that this
    process is gone."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._asked = False  # for a server
        self._held: list[int] = []  # our ends of the ranks' stdins

    def spawn(self, order: Order, tell: Tell) -> Forked | subprocess.Popen[bytes]:
        (told, tells), (printed, prints), (stdin, held) = os.pipe(), os.pipe(), os.pipe()
        self._held.append(held)
        try:
            process = self._start(order, stdin, prints, tells)
        finally:
            for fd in (tells, prints, stdin):
                os.close(fd)
        _read_all("event", told, tell)
        _read_all("line", printed, tell)
        return process

    def _start(self, order: Order, stdin: int, prints: int, tells: int) -> Forked | subprocess.Popen[bytes]:
        environment = {**os.environ, **_surroundings(order)}
        if server := self._fork_server(order):
            words = [json.dumps(asdict(order))]
            return server.start("airloop.rank:main", words, [stdin, prints, prints, tells], environment)
        return subprocess.Popen(
            [sys.executable, "-m", "airloop.rank", json.dumps(asdict(replace(order, events=tells)))],
            stdin=stdin,
            stdout=prints,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[tells],
            start_new_session=True,  # a terminal's Ctrl-C comes to us alone, and we hand it on once
        )

    def _fork_server(self, order: Order) -> ForkServer | None:
        if order.device == "cpu" and not self._asked:
            self._asked = True
            with contextlib.suppress(CannotFork, ChildProcessError):  # they are started anew
                self._server = ForkServer(PRELOADED)
        return self._server

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        if self._server is not None:
            self._server.close()


def _read_all(kind: Literal["event", "line"], fd: int, tell: Tell) -> None:
    def read(stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                tell(kind, raw.decode(errors="replace").rstrip())

    threading.Thread(target=read, args=(os.fdopen(fd, "rb"),), daemon=True).start()


def _surroundings(order: Order) -> dict[str, str]:
    """Each rank sees its own GPU, as number 0, and has its share of the cores; they talk on this machine only."""
    here = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    if order.device == "cuda":
        return {**here, "CUDA_VISIBLE_DEVICES": order.gpu}
    share = max(1, (os.cpu_count() or 1) // order.size)
    return {**here, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share))}
