"""Starting the ranks of a run and watching them: what `air train` does where there are several.

This process trains nothing. It shows the events of the ranks, forwards Ctrl-C to them, and ends them all as soon as one
ends too early, with that one's last lines. A rank never outlives it.
"""

from __future__ import annotations

import functools
import json
import queue
import signal
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from airloop.config import ClusterConfig, Config
from airloop.errors import AirError
from airloop.launch.base import Handle, Launcher, RankSpec
from airloop.runs.run import Run
from airloop.types import Alarm
from airloop.watch.display.display import Display

# Lines of a dead rank's output that are shown; log.txt has all.
LAST_LINES = 12
# A rank's last output may arrive after its end, and errors of other ranks about it before.
SETTLE_S = 1.0
# After a failure nothing is left to save, and after a stop everything is: a process that then does not end by itself
# (libraries that wait for a connection to close) is killed.
GRACE_S = 5.0
# Ranks end together: a checkpoint, an evaluation that is gathered. One that has ended well waits for nothing.
ENDING_S = 600.0
# After Ctrl-C an update that has begun is finished, and a checkpoint that is being written.
STOP_S = 600.0


@dataclass
class RankProcess:
    """A rank that was started, with what it has reported."""

    rank: int
    handle: Handle = field(init=False)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    error: AirError | None = None
    noticed: bool = False  # its error only is that another rank was lost
    phase: str = "starting"
    stopped: float | None = None  # when it reported that it had nothing left to do

    @property
    def busy(self) -> bool:
        waited = self.stopped is not None and time.monotonic() - self.stopped > GRACE_S
        return self.code is None and not waited

    @property
    def code(self) -> int | None:
        return self.handle.poll()


def run_ranks(run: Run, display: Display, resuming: bool, launcher: Launcher) -> None:
    """Train `run` by a process for each rank; returns when all have ended well. The run must be locked by us."""
    alone = config_for_rank(
        run.config, "cuda" if run.config.gpus else "cpu"
    ).warnings()  # each rank reports these itself
    for warning in run.config.warnings():
        if warning not in alone:
            display.say(f"note: {warning}")
    monitor = RankMonitor(run, display, launcher.settle_s)
    try:
        display.phase("starting the processes")
        for spec in launcher.rank_specs(run, resuming):
            monitor.start(launcher, replace(spec, spent=(run.spent_s(), run.spent_s(this_session_only=True))))
        monitor.until_done()
    except KeyboardInterrupt:
        display.phase("stopping: an update that has begun is finished (Ctrl-C again ends it at once)")
        monitor.stop(STOP_S)
        raise
    finally:
        monitor.stop(GRACE_S)
        launcher.close()


def config_for_rank(config: Config, device: str) -> Config:
    """A rank sees one GPU, its own, as number 0. Those of servers are counted as they are by who started the run."""
    ids = [0] if device == "cuda" else None
    trainer = config.trainer.model_copy(update={"processes": None})
    served = config.inference_gpu_ids if config.inference.backend == "vllm" else None
    alone: dict[str, Any] = {"trainer_gpu_ids": ids, "inference_gpu_ids": served, "trainer": trainer}
    alone["cluster"] = ClusterConfig()
    if config.cluster.roles is not None:
        alone["model"] = config.model.model_copy(update={"dtype": config.dtype_apart})
    return config.model_copy(update=alone)


class RankMonitor:
    """The ranks, and a queue of their output. Reader threads only fill the queue; everything else happens in this
    thread."""

    def __init__(self, run: Run, display: Display, settle_s: float) -> None:
        self._run = run
        self._settle_s = settle_s
        self._display = display
        self._processes: list[RankProcess] = []
        self._outputs: queue.Queue[tuple[RankProcess, str, str]] = queue.Queue()

    def start(self, launcher: Launcher, spec: RankSpec) -> None:
        process = RankProcess(spec.rank)
        process.handle = launcher.spawn(spec, functools.partial(self._enqueue, process))
        self._processes.append(process)
        self._run.log(f"rank {spec.rank}: process {process.handle.pid}")

    def _enqueue(self, process: RankProcess, kind: str, text: str) -> None:
        self._outputs.put((process, kind, text))

    def until_done(self) -> None:
        last = 0.0  # when the first of them ended well: the others have nothing left to do
        while any(process.code is None for process in self._processes):
            self._handle_next(0.1)
            if any(process.code not in (None, 0) for process in self._processes):
                break
            if not last and any(process.code == 0 for process in self._processes):
                last = time.monotonic()
            if last and time.monotonic() - last > ENDING_S:
                late = next(process for process in self._processes if process.code is None)
                raise AirError(
                    f"Rank {late.rank} did not end within {ENDING_S:.0f} s of the others, at: {late.phase}.",
                    f"the run is complete; {self._run.path / 'log.txt'} has what that rank did last.",
                )
        failed = [process for process in self._processes if process.code not in (None, 0)]
        if failed:
            self._fail()
        self._drain()

    def stop(self, wait_s: float) -> None:
        """Ask every rank that still runs to stop, and kill those that do not."""
        for process in self._processes:
            if process.code is None:
                process.handle.send_signal(signal.SIGINT)
        try:
            self._wait(wait_s)
        finally:
            for process in self._processes:
                if process.code is None:
                    process.handle.kill()
                process.handle.wait()
            self._drain()

    def _wait(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while any(process.busy for process in self._processes) and time.monotonic() < until:
            self._handle_next(0.05)

    def _fail(self) -> None:
        """Find the rank that ended first, end the others and raise its reason."""
        first = [process for process in self._processes if (process.code or 0) < 0]
        self._wait(SETTLE_S)
        self._await_cause()
        killed = first[0] if first else None
        reported = next((process for process in self._processes if process.error and not process.noticed), None)
        silent = next(
            (process for process in self._processes if process.code not in (None, 0) and not process.error), None
        )
        cause = killed or reported or silent or next(process for process in self._processes if process.error)
        code = cause.code  # before we end it
        self.stop(GRACE_S)
        raise self._reason(cause, code)

    def _await_cause(self) -> None:
        """The connections of other ranks break at once; the rank that caused it may be known later."""
        until = time.monotonic() + self._settle_s
        while any(process.busy for process in self._processes) and time.monotonic() < until:
            if any(not process.noticed for process in self._processes if process.code not in (None, 0)):
                break
            self._handle_next(0.05)
        self._drain()

    def _reason(self, process: RankProcess, code: int | None) -> AirError:
        if process.error and (code or 0) >= 0:
            return process.error
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else "ended without a word"
        memory = " (out of memory, perhaps)" if code == -signal.SIGKILL else ""
        words = "".join(f"\n    {line}" for line in process.lines)
        return AirError(
            f"Rank {process.rank} of {len(self._processes)} {how}{memory} at: {process.phase}. The others were ended."
            + (f" Its last lines:{words}" if words else ""),
            f"go on with `air train --resume {self._run.path}`; {self._run.path / 'log.txt'} has every rank's output.",
        )

    def _handle_next(self, wait_s: float) -> None:
        try:
            process, kind, text = self._outputs.get(timeout=wait_s)
        except queue.Empty:
            return
        self._handle_event(process, kind, text)
        self._drain()

    def _drain(self) -> None:
        while not self._outputs.empty():
            self._handle_event(*self._outputs.get())

    def _handle_event(self, process: RankProcess, kind: str, text: str) -> None:
        if kind == "line":
            if text:
                process.lines.append(text)
                self._run.log(f"rank {process.rank}: {text}")
            return
        try:
            name, *values = json.loads(text)
        except ValueError:  # cut off by its end
            return
        match name:
            case "error":
                process.error = AirError(*values[:2])
                process.noticed = values[2]
            case "stopped":
                process.stopped = time.monotonic()
            case "log":
                self._run.log(f"rank {process.rank}: {values[0]}")
            case "phase":
                process.phase = values[0]
                if process.rank == 0:
                    self._display.phase(*values)
            case "alarm":
                self._display.alarm(Alarm(**values[0]))
            case _:  # advance, say, step, evaluated: as the watcher has them
                getattr(self._display, name)(*values)
