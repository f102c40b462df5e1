"""Starting the ranks of a run and watching them: what `air train` does where there are several.

This process trains nothing. It shows what the ranks tell, hands Ctrl-C on to them, and ends them all as soon as one
ends too early, with that one's last words. A rank never outlives it: each watches the pipe it was started with.

Ranks on the CPU are forked from one process that has imported everything; those on GPUs are started anew (C7).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from airloop.config import Config
from airloop.errors import AirError
from airloop.forkserver import CannotFork, Forked, ForkServer
from airloop.runs.run import Run
from airloop.types import Alarm
from airloop.watch.display.display import Display

# What every rank imports.
PRELOADED = ("airloop.rank", "airloop.training", "airloop.engine.embedded", "torch.distributed.fsdp")
# Lines of a dead rank's output that are shown; log.txt has all.
LAST_LINES = 12
# One rank's end breaks the others' connections: their complaints are waited for, to tell the cause from the effect.
SETTLE_S = 1.0
# After a failure nothing is left to save, and after a stop everything is: a process that then does not end by itself
# (libraries that wait for a connection to close) is killed.
GRACE_S = 5.0
# Ranks end together: a checkpoint, an evaluation that is gathered. One that has ended well waits for nothing.
ENDING_S = 600.0
# After Ctrl-C an update that has begun is finished, and a checkpoint that is being written.
STOP_S = 600.0


@dataclass(frozen=True)
class Order:
    """What a rank is started with (airloop/rank.py reads it)."""

    run: str
    rank: int
    size: int
    store: str
    device: str  # cuda or cpu
    resuming: bool
    events: int  # the file descriptor that it writes what it has to tell to


@dataclass
class Child:
    rank: int
    process: subprocess.Popen[bytes] | Forked
    held: int  # our end of its stdin, never written to: its end tells the rank that we are gone
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    error: AirError | None = None
    noticed: bool = False  # its error is that another rank is gone
    phase: str = "starting"
    stopped: float | None = None  # when it told that it had nothing left to do

    @property
    def busy(self) -> bool:
        waited = self.stopped is not None and time.monotonic() - self.stopped > GRACE_S
        return self.process.poll() is None and not waited


def run_ranks(run: Run, display: Display, resuming: bool) -> None:
    """Train `run` by a process for each rank; returns when all have ended well. The run must be locked by us."""
    gpus = devices(run.config)
    alone = config_for_rank(run.config, "cuda" if gpus else "cpu").warnings()  # a rank tells these itself
    for warning in run.config.warnings():
        if warning not in alone:
            display.say(f"note: {warning}")
    with tempfile.TemporaryDirectory(prefix="air-ranks-") as directory:
        watch = _Watch(run, display)
        try:
            for rank in range(run.config.ranks):
                watch.start(rank, gpus, Path(directory) / "store", resuming)
            watch.until_done()
        except KeyboardInterrupt:
            display.phase("stopping: an update that has begun is finished (Ctrl-C again ends it at once)")
            watch.stop(STOP_S)
            raise
        finally:
            watch.stop(GRACE_S)
            watch.close()


def devices(config: Config) -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES for each rank, or nothing where they train on the CPU."""
    if config.model.device == "cpu":
        return []
    import torch

    found, named = torch.cuda.device_count(), config.gpus or list(range(config.ranks))
    if found == 0 and not config.gpus and config.model.device == "auto":
        return []
    if max(named) >= found:
        raise AirError(
            f"The run wants the GPUs {named}, but this machine has {found}.",
            f"trainer_gpu_ids = {list(range(found))}" if found else 'model.device = "cpu" with trainer.processes',
        )
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [visible[gpu] if visible else str(gpu) for gpu in named]


def config_for_rank(config: Config, device: str) -> Config:
    """A rank sees one GPU, its own, as number 0."""
    ids = [0] if device == "cuda" else None
    trainer = config.trainer.model_copy(update={"processes": None})
    return config.model_copy(update={"trainer_gpu_ids": ids, "inference_gpu_ids": None, "trainer": trainer})


class _Watch:
    """The ranks, and a queue of what they tell. Readers only fill the queue; everything else happens here."""

    def __init__(self, run: Run, display: Display) -> None:
        self._run = run
        self._display = display
        self._children: list[Child] = []
        self._server: ForkServer | None = None
        self._told: queue.Queue[tuple[Child, str, Any]] = queue.Queue()

    def start(self, rank: int, gpus: Sequence[str], store: Path, resuming: bool) -> None:
        if rank == 0 and not gpus:
            with contextlib.suppress(CannotFork):  # they are started anew
                self._server = ForkServer(PRELOADED)
        (told, tells), (printed, prints), (stdin, held) = os.pipe(), os.pipe(), os.pipe()
        where = str(self._run.path), rank, self._run.config.ranks, str(store), "cuda" if gpus else "cpu"
        environment = {**os.environ, **_surroundings(gpus, rank, self._run.config.ranks)}
        if self._server is not None:
            words = [json.dumps(asdict(Order(*where, resuming, events=3)))]
            files = [stdin, prints, prints, tells]
            process: Forked | subprocess.Popen[bytes] = self._server.start(
                "airloop.rank:main", words, files, environment
            )
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "airloop.rank", json.dumps(asdict(Order(*where, resuming, events=tells)))],
                stdin=stdin,
                stdout=prints,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[tells],
                start_new_session=True,  # a terminal's Ctrl-C comes to us alone, and we hand it on once
            )
        for fd in (tells, prints, stdin):
            os.close(fd)
        child = Child(rank, process, held)
        self._children.append(child)
        self._run.log(f"rank {rank}: process {process.pid}")
        for kind, stream in (("event", told), ("line", printed)):
            threading.Thread(target=self._read, args=(child, kind, os.fdopen(stream, "rb")), daemon=True).start()

    def until_done(self) -> None:
        last = 0.0  # when the first of them ended well: the others have nothing left to do
        while any(child.process.poll() is None for child in self._children):
            self._listen(0.1)
            if any(child.process.poll() not in (None, 0) for child in self._children):
                break
            if not last and any(child.process.poll() == 0 for child in self._children):
                last = time.monotonic()
            if last and time.monotonic() - last > ENDING_S:
                late = next(child for child in self._children if child.process.poll() is None)
                raise AirError(
                    f"Rank {late.rank} did not end within {ENDING_S:.0f} s of the others, at: {late.phase}.",
                    f"the run is complete; {self._run.path / 'log.txt'} has what that rank did last.",
                )
        failed = [c for c in self._children if c.process.poll() not in (None, 0)]
        if failed:
            self._fail()
        self._drain()

    def stop(self, wait_s: float) -> None:
        """Ask every rank that still runs to stop, and kill those that do not."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGINT)
        try:
            self._wait(wait_s)
        finally:
            for child in self._children:
                if child.process.poll() is None:
                    child.process.kill()
                child.process.wait()
            self._drain()

    def close(self) -> None:
        for child in self._children:
            os.close(child.held)
        if self._server is not None:
            self._server.close()

    def _wait(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while any(c.busy for c in self._children) and time.monotonic() < until:
            self._listen(0.05)

    def _fail(self) -> None:
        """Find the rank that ended first, end the others and raise its reason."""
        codes = {c.rank: c.process.poll() for c in self._children}
        self._wait(SETTLE_S)
        self._drain()
        killed = next((c for c in self._children if (codes[c.rank] or 0) < 0), None)
        told = next((c for c in self._children if c.error and not c.noticed), None)
        silent = next((c for c in self._children if c.process.poll() not in (None, 0) and not c.error), None)
        cause = killed or told or silent or next(c for c in self._children if c.error)
        self.stop(GRACE_S)
        self._drain()
        raise self._reason(cause, codes[cause.rank])

    def _reason(self, child: Child, code: int | None) -> AirError:
        if child.error and (code or 0) >= 0:
            return child.error
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else "ended without a word"
        memory = " (out of memory, perhaps)" if code == -signal.SIGKILL else ""
        words = "".join(f"\n    {line}" for line in child.lines)
        return AirError(
            f"Rank {child.rank} of {len(self._children)} {how}{memory} at: {child.phase}. The others were ended."
            + (f" Its last lines:{words}" if words else ""),
            f"go on with `air train --resume {self._run.path}`; {self._run.path / 'log.txt'} has every rank's output.",
        )

    def _read(self, child: Child, kind: str, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip()
                self._told.put((child, kind, text))

    def _listen(self, wait_s: float) -> None:
        try:
            child, kind, text = self._told.get(timeout=wait_s)
        except queue.Empty:
            return
        self._hear(child, kind, text)
        self._drain()

    def _drain(self) -> None:
        while not self._told.empty():
            self._hear(*self._told.get())

    def _hear(self, child: Child, kind: str, text: str) -> None:
        if kind == "line":
            if text:
                child.lines.append(text)
                self._run.log(f"rank {child.rank}: {text}")
            return
        try:
            name, *told = json.loads(text)
        except ValueError:  # cut off by its end
            return
        match name:
            case "error":
                child.error = AirError(*told[:2])
                child.noticed = told[2]
            case "stopped":
                child.stopped = time.monotonic()
            case "log":
                self._run.log(f"rank {child.rank}: {told[0]}")
            case "phase":
                child.phase = told[0]
                if child.rank == 0:
                    self._display.phase(*told)
            case "alarm":
                self._display.alarm(Alarm(**told[0]))
            case _:  # advance, say, step, evaluated: as the watcher has them
                getattr(self._display, name)(*told)


def _surroundings(gpus: Sequence[str], rank: int, size: int) -> dict[str, str]:
    """Each rank sees its own GPU, as number 0, and has its share of the cores; they talk on this machine only."""
    here = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    if gpus:
        return {**here, "CUDA_VISIBLE_DEVICES": gpus[rank]}
    share = max(1, (os.cpu_count() or 1) // size)
    return {**here, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share))}
