"""Machines whose clocks say another time of day: nothing is decided by comparing two of them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support.launcher_contract import new_run

import airloop
from airloop.budget import Budget
from airloop.config import with_changes
from airloop.launch.base import OnOutput, RankSpec
from airloop.launch.monitor import run_ranks
from airloop.ranks import Heartbeats
from airloop.runs.run import Run
from airloop.types import Group, Task, Trajectory
from airloop.watch.display.display import Display
from airloop.watch.metrics.latency import StepClock

HOUR = 3600.0
SKEWS = (-HOUR, HOUR)


@pytest.fixture(params=SKEWS, ids=["an hour behind", "an hour ahead"])
def skew(request: pytest.FixtureRequest) -> float:
    return float(request.param)


def shifted(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """From now on this is a machine with that clock."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + by)


class Engine:
    phases = (1.0, 1.0)


def played(name: str, started: float, seconds: float) -> Trajectory:
    return Trajectory(name, Task("stub", "1", "train"), 0, 0, (), (), "done", {}, (), {}, 0.0, started, seconds)


def test_episodes_of_another_machine_are_part_of_a_steps_time_whenever_it_says_they_began(skew: float) -> None:
    clock = StepClock(Engine())
    clock.sampled()
    clock.trained()
    here, there = played("a", time.time(), 2.0), played("b", time.time() + skew, 4.0)
    old = played("c", time.time() + abs(skew), 100.0)  # a killed run has left it
    groups = [Group(here.task, 0, (here, there, old))]
    assert clock.times(groups, {"c"})["other"] == pytest.approx(3.0)
    assert clock.times(groups)["other"] == pytest.approx(106 / 3)


class Recorded:
    """A launcher whose ranks have ended as soon as they are started."""

    settle_s, pid = 0.0, 1

    def __init__(self) -> None:
        self.started: list[RankSpec] = []

    def rank_specs(self, run: Run, resuming: bool) -> list[RankSpec]:
        return [RankSpec(str(run.path), rank, 2, "", "cpu", resuming) for rank in range(2)]

    def spawn(self, order: RankSpec, tell: OnOutput) -> Any:
        self.started.append(order)
        return self

    def poll(self) -> int:
        return 0

    wait = poll

    def close(self) -> None: ...


def test_a_budget_is_kept_by_a_rank_whose_clock_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    run = new_run(tmp_path, nodes=2, ranks=2)
    run.config = with_changes(run.config, {"budget.minutes": 10})
    (began, _), *_ = run.status()["sessions"]
    run.note(budget={"asked": 12}, sessions=[[began - 160, began - 60], [began - 40, None]])
    launcher = Recorded()
    run_ranks(run, Display(quiet=True), False, launcher)  # type: ignore[arg-type]
    assert [order.spent for order in launcher.started] == [pytest.approx((140, 40), abs=5)] * 2
    rank = Run.open(run.path)
    rank.config = run.config
    shifted(monkeypatch, skew)
    rank.spent_before(*launcher.started[0].spent, since=time.monotonic() - 7)
    budget = Budget.of(rank)
    assert budget is not None and budget.left_s == pytest.approx(600 - 147, abs=5)
    assert rank.spent_s(this_session_only=True) == pytest.approx(47, abs=5)
    run.close()


def test_a_session_that_ended_before_it_began_by_another_clock_gives_no_time_back(tmp_path: Path) -> None:
    """Killed: its end is when its files were last written, by the clock of the machine that has them."""
    run = new_run(tmp_path, nodes=1, ranks=2)
    now = time.time()
    run.note(sessions=[[now - 100, now - HOUR], [now - 30, None]])
    assert run.spent_s() == pytest.approx(30, abs=5)
    run.close()


def test_a_ranks_pulse_counts_from_when_it_was_seen_whatever_time_it_says(tmp_path: Path, skew: float) -> None:
    pulses = Heartbeats(tmp_path, 0)
    pulses.stop()
    other = tmp_path / "pulse-1"
    for beat in range(3):
        other.touch()
        os.utime(other, (time.time() + skew + beat, time.time() + skew + beat))
        assert pulses.seconds_still(1) < 1.0
        time.sleep(0.05)
        assert 0.04 < pulses.seconds_still(1) < 5.0


def test_what_runs_on_several_machines_does_not_ask_for_the_time_of_day() -> None:
    root = Path(airloop.__file__).parent
    files = [root / "ranks.py", root / "rank.py", root / "supply.py", root / "stream.py", root / "loop.py"]
    for folder in ("cluster", "launch", "engine/vllm", "rollout"):
        files += (root / folder).rglob("*.py")
    asked = {file.name for file in files if re.search(r"time\.time\(|\.now\(|utcnow|st_[mc]time", file.read_text())}
    # A pulse's time is compared with itself only. When an episode began, or since when a rank stands still by the clock
    # of who tells it, is for those who read it.
    assert asked == {"ranks.py", "episode.py", "program.py", "monitor.py"}
    asks = [line for line in (root / "launch" / "monitor.py").read_text().splitlines() if "time.time(" in line]
    assert [line.split("=")[0].strip() for line in asks] == ["since"]
