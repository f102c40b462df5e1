"""Stalls are named: what is waited for, whose work it is, since when, and the last lines of its log."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_runs import run_watched

from air import waits
from air.assemble import Parts
from air.envs.tune import pool as fitting
from air.waits import WAITS, Stall, Waits, Watchdog, last_lines, waiting

CHILD = (
    "import sys, time; print('{\"ready\": 1}', flush=True); sys.stdin.readline(); "
    "print('reading table 3', file=sys.stderr); print('stuck on a lock', file=sys.stderr, flush=True); time.sleep(60)"
)


def test_a_wait_past_its_deadline_is_told_once_and_again_when_it_is_twice_as_old() -> None:
    told: list[Stall] = []
    waits = Waits()
    dog = Watchdog(told.append, waits, quiet_s=1000)
    with waits.waiting("the fit of wine-3", "worker 7", 0.05, lambda: "one\ntwo"), waits.waiting("lunch", "cook", 100):
        dog.look()
        assert told == []
        time.sleep(0.06)
        dog.look()
        dog.look()
        assert len(told) == 1
        time.sleep(0.08)
        dog.look()
    dog.look()
    assert len(told) == 2 and told[1].waited_s >= 2 * told[0].waited_s
    first = told[0]
    assert (first.what, first.owner, first.lines, first.others) == (
        "the fit of wine-3",
        "worker 7",
        ("one", "two"),
        "cook",
    )
    assert first.overdue and "past its deadline of 0 s" in str(first) and str(first).endswith("\n    one\n    two")
    assert waits.open() == []


def test_when_nothing_moves_the_wait_that_began_last_is_named() -> None:
    told: list[Stall] = []
    waits = Waits()
    dog = Watchdog(told.append, waits, quiet_s=0.05)
    with waits.waiting("2193 episodes", "the sampler", 3600), waits.waiting("an answer", "environment tune", 600):
        for _ in range(3):  # things move
            with waits.waiting("a step", "the engine", 60):
                time.sleep(0.03)
            dog.look()
        assert told == []
        time.sleep(0.06)
        dog.look()
    assert [(stall.what, stall.others) for stall in told] == [("an answer", "the sampler")]
    assert not told[0].overdue and "nothing else has moved; its deadline is 600 s" in str(told[0])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_the_registry_holds_exactly_what_is_waited_for(moves: list[tuple[bool, int]]) -> None:
    waits = Waits()
    held: list[Any] = []
    for begin, place in moves:
        if begin:
            context = waits.waiting(f"w{len(held)}", "x", 1)
            held.append((context, context.__enter__()))
        elif held:
            context, _ = held.pop(place % len(held))
            context.__exit__(None, None, None)
        assert waits.open() == [wait for _, wait in held]


def test_the_thread_tells_even_when_the_event_loop_is_blocked() -> None:
    told: list[Stall] = []

    async def work() -> None:
        with waiting("the update", "the learner", 0.05):
            time.sleep(0.5)  # noqa: ASYNC251 - it blocks the loop, as an update does

    with Watchdog(told.append, every_s=0.02):
        asyncio.run(work())
    assert [stall.owner for stall in told if stall.what == "the update"]


def test_G1_a_hung_child_is_named_with_the_last_lines_of_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COMMAND", [sys.executable, "-c", CHILD])
    told: list[Stall] = []
    worker = fitting.Worker()
    worker.reply(30)
    with Watchdog(told.append, every_s=0.05, quiet_s=0.5), pytest.raises(fitting.WorkerLost) as lost:
        worker.request({"config": "ridge"}, 1.5)
    assert told and told[0].what == "the fit ridge" and told[0].owner == f"fitting worker {worker.pid}"
    assert told[0].lines == ("reading table 3", "stuck on a lock")
    assert "stuck on a lock" in str(lost.value)  # and when it is given up, in the main log


def test_G1_a_stalled_tool_in_a_run_is_an_alarm_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from talk_env import Talk, talking

    monkeypatch.setattr(waits.Watchdog.__init__, "__defaults__", (WAITS, 0.1, 1.0))
    talk = Talk(lambda number, seed: ({"won": float(seed % 2)}, {}), tool_s=2.5)
    changes = {"warmstart.steps": "0", "max_steps": "1", "orchestrator.eval.num_examples": "1"}

    def tamper(parts: Parts) -> None:
        talking(talk)(parts)

    run, witness, error = run_watched(tmp_path, tamper, **changes)
    stalls = witness.of("stall")
    assert error is None and stalls and stalls[0].id == "G1" and stalls[0].severity == "note"
    assert "waiting for the answer to `" in stalls[0].seen and "by environment talk since" in stalls[0].seen
    assert "look at environment talk" in stalls[0].fix and run.alarms()[0]["name"] == "stall"


def test_a_log_that_cannot_be_read_is_said() -> None:
    def gone() -> str:
        raise OSError("closed")

    assert last_lines(gone) == ("(its log could not be read: closed)",) and last_lines(None) == ()


def test_G1_the_end_of_a_sandbox_door_is_in_the_error_it_causes(tmp_path: Path) -> None:
    from air.errors import InfraError
    from air.sandbox.doorkeeper import Door

    door = Door(tmp_path, "files", sys.executable)
    door.process.kill()
    door.process.wait()
    with pytest.raises(InfraError) as error:
        asyncio.run(door.ask("list", {"id": "x"}, patience_s=5))
    assert "it ended with -9" in str(error.value)
    door.close()
