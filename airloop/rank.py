"""One rank of a run, as a process of its own: `python -m airloop.rank ORDER`, started by a launcher of airloop/launch.

What it has to tell goes to the launcher as lines of JSON, in the words of a Watcher; whatever it or a library prints
goes to the run's log.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airloop import interrupts
from airloop.errors import AirError
from airloop.launch.base import RankSpec
from airloop.launch.monitor import config_for_rank
from airloop.pulse import PulseThread, dump_on_signal
from airloop.runs.run import Run
from airloop.text.keys import print_no_keys, without_keys_in
from airloop.types import Alarm


class Reporter:
    """A Watcher that tells the launcher. What every rank would say alike is said by the first."""

    def __init__(self, events: int, rank: int) -> None:
        self._file = os.fdopen(events, "w", encoding="utf-8")
        self._rank = rank
        self._has_room = select.poll()  # select() takes no descriptor above 1023
        self._has_room.register(self._file, select.POLLOUT)
        self._lock = threading.Lock()

    def phase(self, text: str, total: int = 0) -> None:
        self._send("phase", text, total)

    def advance(self, detail: str = "") -> None:
        self._send("advance", detail)

    def step(self, metrics: dict[str, Any]) -> None:
        if self._rank == 0:
            self._send("step", metrics)

    def alarm(self, alarm: Alarm) -> None:
        self._send("alarm", asdict(alarm))

    def evaluated(self, metrics: dict[str, Any]) -> None:
        if self._rank == 0:
            self._send("evaluated", metrics)

    def say(self, text: str) -> None:
        self._send("say" if self._rank == 0 else "log", text)

    def warn(self, text: str) -> None:
        """What this rank's parts log: seen, whichever rank it is."""
        self._send("say", f"rank {self._rank}: {text}")

    def pulse(self, values: dict[str, Any]) -> None:
        """Left out where nobody reads just now: what matters must find room in the pipe."""
        if self._has_room.poll(0):
            self._send("pulse", values)

    def stopped(self) -> None:
        self._send("stopped")

    def fail(self, error: AirError, noticed: bool) -> None:
        self._send("error", error.problem, error.fix, noticed)

    def _send(self, *event: Any) -> None:
        with self._lock:
            self._file.write(json.dumps(without_keys_in(event)) + "\n")
            self._file.flush()


def main() -> None:
    spec, began = RankSpec(**json.loads(sys.argv[1])), time.monotonic()
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    interrupts.install_launcher_handlers()
    print_no_keys()
    reporter = Reporter(spec.events, spec.rank)
    try:
        _run(spec, reporter, began)
    except (KeyboardInterrupt, asyncio.CancelledError):
        reporter.stopped()
        sys.exit(130)
    except AirError as error:
        from airloop.ranks import RankLost

        reporter.fail(error, isinstance(error, RankLost))
        sys.exit(1)
    except BaseException as error:
        traceback.print_exc()
        what = f"Rank {spec.rank} failed: {type(error).__name__}: {error}"
        reporter.fail(AirError(what, f"{Path(spec.run) / 'log.txt'} has the traceback."), noticed=False)
        sys.exit(1)


def open_run(spec: RankSpec) -> Run:
    """As this rank has it."""
    run = Run.open(Path(spec.run))
    run.config = config_for_rank(run.config, spec.device)
    run.writes, run.session = spec.rank == 0, spec.session
    return run


def _run(spec: RankSpec, reporter: Reporter, began: float) -> None:
    from airloop.ranks import DistributedRanks
    from airloop.training import send_logs_to, train_rank

    run = open_run(spec)
    if spec.spent is not None:
        run.spent_before(*spec.spent, since=began)
    send_logs_to(reporter.warn, run.config)
    timeout_s = run.config.trainer.rank_timeout_s
    dump_on_signal(spec.folder, spec.rank)
    pulses = PulseThread(reporter.pulse, timeout_s)
    ranks = DistributedRanks(spec.rank, spec.size, Path(spec.folder), spec.device, spec.address, timeout_s)

    async def train() -> None:
        pulses.loop = asyncio.get_running_loop()
        await train_rank(run, reporter, spec.resuming, ranks)

    try:
        asyncio.run(train())
    finally:
        pulses.stop()
    ranks.close()


def _end_with_launcher() -> None:
    """The launcher writes nothing: the pipe's end means that it is gone, however it went."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
