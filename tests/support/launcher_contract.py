"""What every launcher must do, wherever it starts ranks: asked of this machine's, of one above scripted nodes and of
one above Ray. Each check takes a new launcher, and a run of two ranks that nobody trains."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.rank_runs import FLAGS, alive, words

from airloop.config import load_config
from airloop.launch.base import Handle, Launcher
from airloop.runs.run import Run

WAIT_S = 120.0


class Told:
    """What a rank tells."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []
        self.lines: list[str] = []

    def __call__(self, kind: str, text: str) -> None:
        if kind == "event":
            self.events.append(json.loads(text))
        else:
            self.lines.append(text)


def new_run(directory: Path, nodes: int) -> Run:
    more = {"output_dir": str(directory), "trainer.processes": "2", "cluster.nodes": str(nodes), "model.device": "cpu"}
    config = load_config(words({**FLAGS, **more}))
    return Run.create(config, config.task)


def ended(process: Handle) -> int:
    until = time.monotonic() + WAIT_S
    while (code := process.poll()) is None:
        assert time.monotonic() < until, "it has not ended"
        time.sleep(0.02)
    return code


def check_orders(launcher: Launcher, run: Run) -> None:
    """One for each rank, of one run, that can meet."""
    orders = launcher.orders(run, False)
    assert [order.rank for order in orders] == [0, 1] and {order.size for order in orders} == {2}
    assert len({(order.run, order.folder, order.address, order.device) for order in orders}) == 1
    assert Path(orders[0].folder).is_dir() and orders[0].run == str(run.path)
    launcher.close()
    assert not Path(orders[0].folder).exists()


def check_a_refusal(launcher: Launcher, run: Run) -> None:
    """What a rank refuses is told, before its end is."""
    order = replace(launcher.orders(run, False)[0], run=str(run.path / "nothing"))
    told = Told()
    process = launcher.spawn(order, told)
    assert process.pid > 0 and ended(process) == 1 == process.wait()
    assert not alive(process.pid)
    time.sleep(0.5)  # of this machine's, the end may be seen before the last words
    (name, problem, _, noticed), *more = told.events
    assert (name, noticed, more) == ("error", False, []) and "is not a run" in str(problem)


def check_what_is_printed(launcher: Launcher, run: Run) -> None:
    """Whatever a rank prints is told by lines, to the last: here the traceback of what nobody has thought of."""
    told = Told()
    process = launcher.spawn(replace(launcher.orders(run, False)[1], address="nowhere"), told)
    assert ended(process) == 1
    time.sleep(0.5)
    ((name, problem, *_),) = told.events
    assert name == "error" and "Rank 1 failed: ValueError" in str(problem)
    first = next(at for at, line in enumerate(told.lines) if line.startswith("Traceback"))
    assert told.lines[first:][-1].startswith("ValueError: ")


def check_signals(launcher: Launcher, run: Run) -> None:
    """A rank that waits for one that was never started: killed, it ends as a killed process does."""
    told = Told()
    process = launcher.spawn(launcher.orders(run, False)[1], told)
    time.sleep(0.5)
    assert process.poll() is None and alive(process.pid)
    assert not _masks(process.pid)["SigBlk"] & 1 << signal.SIGINT - 1, "it would never hear Ctrl-C"
    process.send_signal(signal.SIGTERM)  # is for whoever has started it to answer
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    assert ended(process) == -signal.SIGKILL == process.wait() and not alive(process.pid)
    process.kill()  # nobody is there


def _masks(pid: int) -> dict[str, int]:
    """Of a process' signals: those it blocks, ignores, has a handler for."""
    lines = (line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value, 16) for name, value in lines if name.startswith("Sig") and name != "SigQ"}


def check_close(launcher: Launcher, run: Run) -> None:
    """A rank does not outlive its launcher."""
    process = launcher.spawn(launcher.orders(run, False)[1], Told())
    assert alive(process.pid)
    launcher.close()
    until = time.monotonic() + WAIT_S
    while alive(process.pid):
        assert time.monotonic() < until
        time.sleep(0.05)


CHECKS: tuple[Callable[[Launcher, Run], None], ...] = (
    check_orders,
    check_a_refusal,
    check_what_is_printed,
    check_signals,
    check_close,
)
