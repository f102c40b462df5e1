"""Starting the ranks of a run and watching them: what `air train` does where there are several.

This process trains nothing. It shows the events of the ranks, forwards Ctrl-C to them, and ends them all as soon as one
ends too early, with that one's last lines. A rank never outlives it.
"""

from __future__ import annotations

import functools
import json
import platform
import queue
import signal
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airloop.config import ClusterConfig, Config
from airloop.errors import AirError
from airloop.launch.base import Handle, Launcher, RankSpec
from airloop.launch.stillness import ProcessLook, Still, Stillness, process_look
from airloop.pulse import LINES, Pulse, frames_file
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
# Between two looks whether a rank does not come; and for one to write where it is.
LOOK_S = 1.0
FRAMES_S = 5.0
# A process ends at once when it is killed, unless the kernel is doing something for it that cannot be interrupted.
KILLED_S = 30.0
# After Ctrl-C an update that has begun is finished, and a checkpoint that is being written.
STOP_S = 600.0


@dataclass
class RankProcess:
    """A rank that was started, with what it has reported."""

    rank: int
    frames: Path  # where it writes what its threads are at, when it is asked by a signal
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
            spent = run.spent_s(), run.spent_s(this_session_only=True)
            monitor.start(launcher, replace(spec, spent=spent, session=run.session))
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
    return config_for_one(config, [0] if device == "cuda" else None)


def config_for_one(config: Config, gpus: list[int] | None) -> Config:
    """The same run for a process that trains by itself."""
    trainer = config.trainer.model_copy(update={"processes": None})
    served = None if config.inference.own_weights else config.inference_gpu_ids
    alone: dict[str, Any] = {"trainer_gpu_ids": gpus, "inference_gpu_ids": served, "trainer": trainer}
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
        self._stillness = Stillness(run.config.trainer.rank_timeout_s, self._look_at)
        self._looked = 0.0

    def start(self, launcher: Launcher, spec: RankSpec) -> None:
        process = RankProcess(spec.rank, frames_file(spec.folder, spec.rank))
        self._stillness.start(spec.rank)
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
            if self._is_time_to_look():
                self._end_if_still()
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
            self._wait(wait_s, stopping=True)
        finally:
            for process in self._processes:
                if process.code is None:
                    process.handle.kill()
            self._await_killed()
            self._drain()

    def _await_killed(self) -> None:
        until = time.monotonic() + KILLED_S
        while (left := [p for p in self._processes if p.code is None]) and time.monotonic() < until:
            time.sleep(0.02)
        for process in left:
            self._display.say(
                f"note: rank {process.rank} (process {process.handle.pid}) was killed and has not ended: it is in the "
                "kernel, waiting for a disk or a network's files. It ends by itself when that answers."
            )

    def _wait(self, wait_s: float, stopping: bool = False) -> None:
        """`stopping`: not for a rank that does not come to its end, and not for those that wait for it."""
        self._drain()  # what ranks said before is no sign that they take notice
        until, since = time.monotonic() + wait_s, self._stillness.now
        waited_for = self._stillness.waited_for(self._running())
        while any(process.busy for process in self._processes) and time.monotonic() < until:
            self._handle_next(0.05)
            if (
                stopping
                and self._is_time_to_look()
                and (late := self._stillness.hopeless(self._running(), since, waited_for))
            ):
                named = ", ".join(f"rank {rank} ({self._process(rank).phase})" for rank in late)
                self._display.say(f"note: not waited for any longer, as it stands still: {named}")
                return

    def _running(self) -> list[int]:
        return [process.rank for process in self._processes if process.busy]

    def _process(self, rank: int) -> RankProcess:
        return next(process for process in self._processes if process.rank == rank)

    def _look_at(self, rank: int) -> ProcessLook | None:
        handle = self._process(rank).handle
        return None if hasattr(handle, "host") else process_look(handle.pid)

    def _is_time_to_look(self) -> bool:
        if time.monotonic() - self._looked < LOOK_S:
            return False
        self._looked = time.monotonic()
        return True

    def _end_if_still(self) -> None:
        if still := self._stillness.find(self._running()):
            self._end_still(still)
        if waited := self._stillness.all_wait(self._running()):
            pulses = [(rank, self._stillness.ranks[rank].pulse) for rank in self._running()]
            places = "; ".join(f"rank {rank} at: {pulse.waits}" for rank, pulse in pulses if pulse)
            dumps = [f"rank {process.rank}:\n{self._frames_of(process)}" for process in self._processes]
            self._run.log("all ranks wait for one another\n" + "\n".join(dumps))
            self.stop(GRACE_S)
            raise AirError(
                f"All {len(self._processes)} ranks have waited for one another for {waited:.0f} s: {places}. What is "
                "between them is broken, or they have come to different places.",
                f"go on with `air train --resume {self._run.path}`; {self._run.path / 'log.txt'} has what each of "
                "their threads was at. trainer.rank_timeout_s, where that was too short.",
            )

    def _end_still(self, still: Still) -> None:
        """Ends all ranks, as one does not come; raises what is known of it."""
        process, pulse, waits = self._process(still.rank), still.seen.pulse, self._stillness.ranks[still.waiting].pulse
        dump = self._frames_of(process)
        process.handle.kill()
        lines = list(pulse.lines) if pulse and not still.stopped else []
        lines = lines or innermost(dump)
        self._run.log(f"rank {still.rank} stands still, at:\n" + "\n".join([*lines, dump]))
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - still.seconds))
        what = "is stopped by a signal" if still.stopped else "does not move"
        self.stop(GRACE_S)
        raise AirError(
            f"Rank {still.rank} of {len(self._processes)} (process {process.handle.pid} on "
            f"{host_of(process.handle)}) {what} since {since}, {still.seconds:.0f} s, at: "
            f"{process.phase}. Rank {still.waiting} has waited {still.waited_s:.0f} s for it, at: "
            f"{waits.waits if waits else ''}. The others were ended."
            + (f" It stands at:{''.join(chr(10) + '    ' + line for line in lines)}" if lines else ""),
            f"go on with `air train --resume {self._run.path}`; {self._run.path / 'log.txt'} has what each of its "
            f"threads was at. It was given {still.limit_s:.0f} s: trainer.rank_timeout_s, where that was too short.",
        )

    def _frames_of(self, process: RankProcess) -> str:
        """What its threads are at. One that is stopped writes it as soon as it goes on, before anything else."""
        for number in (signal.SIGUSR1, signal.SIGCONT):
            process.handle.send_signal(number)
        until, text = time.monotonic() + FRAMES_S, ""
        while time.monotonic() < until and process.code is None:
            time.sleep(0.1)
            before, text = text, _read(process.frames)
            if text and text == before:
                break
        return text

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
            return self._stillness.tick(time.monotonic())
        self._stillness.tick(time.monotonic())
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
            case "pulse":
                self._stillness.hear(process.rank, Pulse(**values[0]))
            case "phase":
                process.phase = values[0]
                self._stillness.phase(process.rank, values[0])
                if process.rank == 0:
                    self._display.phase(*values)
            case "alarm":
                self._display.alarm(Alarm(**values[0]))
            case _:  # advance, say, step, evaluated: as the watcher has them
                getattr(self._display, name)(*values)


def host_of(handle: Handle) -> str:
    """The machine that a rank runs on: this one, where its launcher does not say."""
    return str(getattr(handle, "host", platform.node()))


def innermost(dump: str) -> list[str]:
    """Of what faulthandler writes, with the innermost first and the main thread last: the main thread's lines, the
    innermost last."""
    main = dump.rpartition("most recent call first")[2].splitlines()
    return [line.strip() for line in main if line.startswith("  File")][:LINES][::-1]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
