"""What every launcher must do, wherever it starts ranks: asked of this machine's, of one above scripted nodes and of
one above Ray. It takes a new launcher, and a run of four ranks that nobody trains."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.rank_runs import FLAGS, alive, words

from airloop.config import load_config
from airloop.launch.base import Handle, Launcher, RankSpec
from airloop.runs.run import Run

WAIT_S = 120.0


class Told:
    """What a rank tells."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []
        self.lines: list[str] = []

    def __call__(self, kind: str, text: str) -> None:
        if kind == "event":
            if (event := json.loads(text))[0] != "pulse":  # which comes now and then, while a rank lives
                self.events.append(event)
        else:
            self.lines.append(text)


def new_run(directory: Path, nodes: int, ranks: int) -> Run:
    more = {
        "output_dir": str(directory),
        "trainer.processes": str(ranks),
        "cluster.nodes": str(nodes),
        "model.device": "cpu",
    }
    config = load_config(words({**FLAGS, **more}))
    return Run.create(config, config.task)


def ended(process: Handle) -> int:
    until = time.monotonic() + WAIT_S
    while (code := process.poll()) is None:
        assert time.monotonic() < until, "it has not ended"
        time.sleep(0.02)
    return code


def _wait_for(state: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_S
    while not state():
        assert time.monotonic() < until
        time.sleep(0.02)


def check_launcher(launcher: Launcher, run: Run) -> None:
    """All of it. Each part has a rank of its own; the last closes the launcher."""
    rank_specs = launcher.rank_specs(run, False)
    assert [spec.rank for spec in rank_specs] == [0, 1, 2, 3] and {spec.size for spec in rank_specs} == {4}
    assert len({(spec.run, spec.folder, spec.address, spec.device) for spec in rank_specs}) == 1
    assert Path(rank_specs[0].folder).is_dir() and rank_specs[0].run == str(run.path)
    _refuses(launcher, rank_specs[0])
    _prints(launcher, rank_specs[1])
    _is_killed(launcher, rank_specs[2])
    _does_not_outlive(launcher, rank_specs[3])
    assert not Path(rank_specs[0].folder).exists()


def _refuses(launcher: Launcher, spec: RankSpec) -> None:
    """What a rank refuses is told, before its end is."""
    told = Told()
    process = launcher.spawn(replace(spec, run=str(Path(spec.run) / "nothing")), told)
    assert process.pid > 0 and ended(process) == 1 == process.wait()
    assert not alive(process.pid)
    _wait_for(lambda: told.events)  # of this machine's, the end may be seen before the last words
    time.sleep(0.5)  # for whatever else it might tell
    (name, problem, _, noticed), *more = told.events
    assert (name, noticed, more) == ("error", False, []) and "is not a run" in str(problem)


def _prints(launcher: Launcher, spec: RankSpec) -> None:
    """Whatever a rank prints is told by lines, to the last: here the traceback of what nobody has thought of."""
    told = Told()
    process = launcher.spawn(replace(spec, address="nowhere"), told)
    assert ended(process) == 1
    _wait_for(lambda: told.events and any(line.startswith("ValueError: ") for line in told.lines))
    ((name, problem, *_),) = told.events
    assert name == "error" and f"Rank {spec.rank} failed: ValueError" in str(problem)
    first = next(at for at, line in enumerate(told.lines) if line.startswith("Traceback"))
    assert told.lines[first:][-1].startswith("ValueError: ")


def _is_killed(launcher: Launcher, spec: RankSpec) -> None:
    """A rank that waits for one that was never started: killed, it ends as a killed process does."""
    process = launcher.spawn(spec, Told())
    _wait_for(lambda: _masks(process.pid)["SigCgt"] & 1 << signal.SIGTERM - 1)  # else it would end as any process does
    assert process.poll() is None and alive(process.pid)
    assert not _masks(process.pid)["SigBlk"] & 1 << signal.SIGINT - 1, "it would never hear Ctrl-C"
    process.send_signal(signal.SIGTERM)  # is for whoever has started it to answer
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    assert ended(process) == -signal.SIGKILL == process.wait() and not alive(process.pid)
    process.kill()  # nobody is there


def _does_not_outlive(launcher: Launcher, spec: RankSpec) -> None:
    process = launcher.spawn(spec, Told())
    assert alive(process.pid)
    launcher.close()
    until = time.monotonic() + WAIT_S
    while alive(process.pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def _masks(pid: int) -> dict[str, int]:
    """Of a process' signals: those it blocks, ignores, has a handler for."""
    lines = (line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value, 16) for name, value in lines if name.startswith("Sig") and name != "SigQ"}
