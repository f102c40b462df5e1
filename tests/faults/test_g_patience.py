"""G10: a slow machine is no broken one. What takes long is waited for, and what cannot be had is not judged."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.busy import busy_processes, wait_starved
from support.probe_cases import ARITH, ask, case_of, chance, graded
from support.tiny_runs import write_config
from support.warm_process import Process

from airloop import ranks, waits
from airloop.config import load_config
from airloop.cpu_progress import CpuProgress, CpuTimeout, cpu_seconds
from airloop.doctor import preflight, probe
from airloop.doctor.case import Case, NotJudged
from airloop.doctor.examine import Result, examine
from airloop.doctor.report import as_json, exit_code, format_report, refusal, unjudged
from airloop.engine.embedded.engine import EmbeddedEngine
from airloop.envs.arith import ArithSession
from airloop.runs.run import Run
from airloop.types import Action, Observation
from airloop.waits import Stall, Waits, Watchdog
from airloop.watch.display.display import Display

LOOKS = 5  # for one moment in which no other thread of this process, of a test before, has anything to do
SPINS = "import time\nprint('computing', flush=True)\nwhile True: pass"
SLEEPS = "import time\nprint('waiting', flush=True)\ntime.sleep(60)"


def slow_engine(monkeypatch: pytest.MonkeyPatch, seconds: float, after: int = 0) -> None:
    """From its `after`-th request on, the engine takes this much longer for a reply."""
    original, asked = EmbeddedEngine.generate, iter(range(10**6))

    async def generate(self: EmbeddedEngine, *args: Any, **kwargs: Any) -> Any:
        if next(asked) >= after:
            await asyncio.sleep(seconds)
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(EmbeddedEngine, "generate", generate)


def examined(case: Case, *stages: Any) -> dict[str, Result]:
    return {result.check.name: result for result in examine(case, stages or ("probe", "proof"))}


def judged(results: dict[str, Result]) -> set[str | None]:
    return {result.verdict for result in results.values()}


# --- the doctor's probe -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_G10_an_engine_slower_than_the_probes_clock_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one reply comes in what used to be the whole time of a round."""
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    monkeypatch.setattr(probe, "ROUND_S", {"cpu": 0.5})
    slow_engine(monkeypatch, 1.0)
    with case_of(ARITH) as case:
        found = examined(case, "probe")
        assert case.probe.limit_s > 2.0 and case.probe.cut == 0 and len(case.probe.trajectories) == probe.EPISODES
        found |= {"trainer_agrees": Result(found["rewards_differ"].check, tuple(ask(case, "trainer_agrees")), 0.0)}
    assert judged(found) == {"pass"}


@pytest.mark.long
def test_G10_an_engine_too_slow_to_be_waited_for_is_not_judged_and_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 30 ms, so a reply of 500 tokens 15 s: more than the probe has, and known after five tokens. Proofs
    look at tokens, whatever becomes of them, and a few can be had."""
    original = EmbeddedEngine._run

    def step(self: EmbeddedEngine, *args: Any) -> Any:
        time.sleep(0.03)
        return original(self, *args)

    monkeypatch.setattr(EmbeddedEngine, "_run", step)
    monkeypatch.setattr(probe, "LONGEST_S", 12.0)
    with case_of(ARITH, orchestrator__sampling__max_tokens="500", seq_len="600") as case:
        found = examined(case)
    results = list(found.values())
    assert judged(found) <= {"pass", "not judged", "warn", None}
    (told,) = [result for result in results if result.verdict == "not judged"]
    assert "first replies would take about" in told.findings[0].seen and "have 12 s" in told.findings[0].seen
    assert "a smaller model" in told.findings[0].fix and "episode_timeout_s" in told.findings[0].fix
    for name in ("trainer_agrees", "adapter_arrives", "update_moves", "checkpoint_restores"):  # F1, F2, F5, G2
        assert found[name].verdict in ("pass", "warn"), found[name]


def test_G10_an_engine_that_stops_answering_fails_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers while its speed is measured, and then no more."""
    monkeypatch.setattr(probe, "ROUND_S", {"cpu": 1.0})
    slow_engine(monkeypatch, 3600.0, after=2 * probe.EPISODES)  # once to warm up, once by the clock
    with case_of(ARITH) as case:
        found = examined(case)
    results = list(found.values())
    assert judged(found) <= {"pass", "not judged", None} and exit_code(results) == 0
    told = [result for result in results if result.verdict == "not judged"]
    assert any("not one reply was sampled" in f.seen for result in told for f in result.findings)
    assert any("ended by deadline" in f.seen for result in told for f in result.findings)
    report = as_json(results)
    assert refusal(report) is None and any("not one reply was sampled" in text for text in unjudged(report))
    assert "NOT JUDGED" in format_report(results) and "not judged" in format_report(results).splitlines()[-1]


def test_G10_episodes_that_hang_are_not_judged_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: ArithSession, action: Action) -> Observation:
        await asyncio.sleep(3600)
        return Observation("")

    monkeypatch.setattr(ArithSession, "act", hang)
    monkeypatch.setattr(probe, "ROUND_S", {"cpu": 4.0})  # for the replies, on however busy a machine
    with case_of(ARITH) as case:
        found = examined(case)
    assert "fail" not in judged(found)
    assert found["trainer_agrees"].verdict == "pass"  # replies were sampled, whatever became of them
    told = [f for result in found.values() for f in result.findings if f.verdict == "not judged"]
    assert any("ended 16 of 16 before they were over" in f.seen for f in told)


def test_G10_a_task_that_does_not_open_is_its_own_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: ArithSession) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(ArithSession, "begin", hang)
    monkeypatch.setattr(probe, "LONGEST_S", 0.5)
    with case_of(ARITH) as case, pytest.raises(NotJudged, match="not opened and answered"):
        _ = case.probe


def test_G10_tasks_that_take_long_to_be_made_leave_time_for_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making them is not opening them: prompts were not judged where the list took longer than their second."""
    original = Case._first_tasks

    def slowly(self: Case) -> Any:
        time.sleep(1.2)
        return original(self)

    monkeypatch.setattr(Case, "_first_tasks", slowly)
    with case_of(ARITH) as case:
        assert case.prompts and ask(case, "replies_fit")[0].verdict == "pass"


EXAMINES = """
import json, sys
from pathlib import Path
import pytest
from support.probe_cases import ARITH, case_of, chance, graded
from airloop.doctor.examine import examine
from airloop.doctor.report import as_json

graded(pytest.MonkeyPatch(), lambda text: {"correct": chance(text)})
with case_of(ARITH, trainer__optim__lr="1e-2") as case:
    report = as_json(examine(case, ("fast", "probe", "proof")))
Path(sys.argv[1]).write_text(json.dumps(report))
"""


@pytest.mark.long
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.alone])])
def test_G10_the_doctor_ends_well_beside_eight_busy_processes(tmp_path: Path, real: bool) -> None:
    process = Process([tmp_path / "report.json"], code=EXAMINES)
    with busy_processes(8) if real else contextlib.nullcontext():
        assert (process.wait() if real else wait_starved(process)) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    told = [f"{c['name']}: {f['seen']}" for c in report["checks"] for f in c["findings"] if f["verdict"] != "pass"]
    assert report["exit_code"] == 0 and not told, told
    assert all(c["findings"] for c in report["checks"])  # nothing was left out


# --- waits, and processes that are waited for ------------------------------------------------------------------------


def test_G10_a_wait_that_makes_progress_is_no_stall() -> None:
    told: list[Stall] = []
    here = Waits()
    dog = Watchdog(told.append, here, quiet_s=0.1)
    with here.waiting("98 MB", "the hub", 0.1) as wait:
        for i in range(5):
            time.sleep(0.04)
            wait.progress(f"{i} of 98 MB")
            dog.look()
        assert told == []
        time.sleep(0.15)
        dog.look()
    assert [stall.what for stall in told] == ["98 MB"]


def compute(seconds: float) -> None:
    """As much as takes so long on a core of its own."""
    until, end = time.process_time() + seconds, time.monotonic() + 60
    while time.process_time() < until and time.monotonic() < end:
        pass


def test_G10_a_slow_update_is_no_stall_and_one_that_hangs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Stall] = []
    here = Waits()
    dog = Watchdog(told.append, here, quiet_s=0.2)
    monkeypatch.setattr(waits, "COMPUTING", 1000)
    with here.waiting("the update", "the learner", 0.2, here=True):
        compute(0.3)  # however slowly
        dog.look()
    assert told == []
    for _ in range(LOOKS):
        with here.waiting("the update", "the learner", 0.2, here=True):
            time.sleep(0.5)
            dog.look()
        if told:
            break
    assert [stall.what for stall in told] == ["the update"]


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(children: list[subprocess.Popen[str]], program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    children.append(process)
    assert process.stdout is not None and process.stdout.readline()
    return process


@pytest.mark.skipif(cpu_seconds(1) is None, reason="needs /proc")
def test_G10_a_child_has_its_time_by_what_it_computes(children: list[subprocess.Popen[str]]) -> None:
    """Two compete for what one would have: each is given as long as it takes to use its seconds."""
    sleeping, spinning = start(children, SLEEPS), start(children, SPINS)
    idle = CpuTimeout(0.5, sleeping.pid)
    assert 0 < idle.left() <= 0.5
    time.sleep(0.6)
    assert idle.left() == 0.0
    for _ in range(LOOKS):  # a machine whose scheduler forgets it for half a second has it over too early, and rightly
        first, at_work = cpu_seconds(spinning.pid) or 0.0, CpuTimeout(0.5, spinning.pid)
        began, lefts = time.monotonic(), [at_work.left()]
        while lefts[-1] and time.monotonic() < began + 60:
            time.sleep(0.05)
            lefts.append(at_work.left())
        took, used = time.monotonic() - began, (cpu_seconds(spinning.pid) or 0.0) - first  # read after it was over
        assert 0 < lefts[0] <= 0.5 and lefts[-1] == 0.0 and took >= 0.49
        if used >= 0.49:
            break
    assert used >= 0.49  # but for the rounding of clock ticks


def test_G10_what_this_process_computes_is_told_from_waiting() -> None:
    cpu, computed = CpuProgress(), True
    for _ in range(LOOKS):
        cpu.restart()
        time.sleep(0.2)
        if not (computed := cpu.computing):
            break
    assert not computed
    cpu.restart()
    compute(0.3)
    assert cpu.computing


def test_G10_a_rank_that_goes_on_is_seen_by_the_others_and_one_that_hangs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "HEARTBEAT_S", 0.02)
    heartbeats = ranks.Heartbeats(tmp_path, 1)
    try:
        assert heartbeats.last(0) == 0.0
        began = time.time()
        with waits.waiting("the supervised start", "the learner", 60) as wait:
            until = time.monotonic() + 30
            while heartbeats.last(1) < began + 0.2 and time.monotonic() < until:  # file times may be coarse
                wait.progress("part 1 of 2")
                time.sleep(0.01)
            assert heartbeats.last(1) >= began + 0.2
            last, since, until = heartbeats.last(1), time.monotonic(), time.monotonic() + 30
            while time.monotonic() < min(since + 0.5, until):  # the last progress may be written late
                time.sleep(0.02)
                if heartbeats.last(1) != last:
                    last, since = heartbeats.last(1), time.monotonic()
            assert heartbeats.seconds_still(1) < 0.1  # seen just now, whatever the file's own time is
            time.sleep(0.3)  # the thread lives, and nothing moves
            assert heartbeats.last(1) == last and heartbeats.seconds_still(1) >= 0.3
    finally:
        heartbeats.stop()


def test_G10_proofs_in_a_process_that_hangs_are_not_judged_and_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "APART_S", 0.5)
    monkeypatch.setattr(preflight.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    config = load_config(["@", str(write_config(tmp_path)), "--trainer.processes", "2"])
    run, said = Run.create(config, "arith"), list[str]()
    display = Display(Console(file=io.StringIO()))
    monkeypatch.setattr(display, "say", said.append)
    began = time.monotonic()
    preflight.prove_apart(run, display)  # and the run goes on
    run.close()
    assert time.monotonic() - began < 30 and "not judged" in run.status()["proofs"]
    assert any("not judged: the process that makes them did not end" in text for text in said)
