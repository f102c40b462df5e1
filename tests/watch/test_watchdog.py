"""Stalls are named: what is waited for, whose work it is, since when, and the last lines of its log. (In a run, and of
real children: G1 in tests/faults/.)"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airloop.waits
from airloop.waits import Stall, Waits, Watchdog, last_lines, waiting


def test_a_wait_past_its_deadline_is_told_once_and_again_when_it_is_twice_as_old() -> None:
    told: list[Stall] = []
    waits = Waits()
    dog = Watchdog(told.append, waits, quiet_s=1000)
    with (
        waits.waiting("the fit of wine-3", "worker 7", 30, lambda: "one\ntwo") as wait,
        waits.waiting("lunch", "cook", 300),
    ):
        dog.look()
        assert told == []
        wait.moved -= 31
        dog.look()
        dog.look()
        assert len(told) == 1
        wait.moved -= 60
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
    assert first.overdue and "past its deadline of 30 s" in str(first) and str(first).endswith("\n    one\n    two")
    assert waits.open() == []


def test_when_nothing_moves_the_wait_that_began_last_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airloop.waits, "_longer", lambda wait: 1)  # this process may be seen to compute
    told: list[Stall] = []
    waits = Waits()
    dog = Watchdog(told.append, waits, quiet_s=30)

    def time_passes(seconds: float) -> None:
        waits._moved -= seconds
        for wait in waits.open():
            wait.moved -= seconds

    sampler, tune = (
        waits.waiting("2193 episodes", "the sampler", 3600),
        waits.waiting("an answer", "environment tune", 600),
    )
    with sampler, tune:
        for _ in range(3):  # things move
            with waits.waiting("a step", "the engine", 60):
                time_passes(20)
            dog.look()
        assert told == []
        time_passes(31)
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

    def told_of_it() -> list[str]:
        return [stall.owner for stall in told if stall.what == "the update"]

    async def work() -> None:
        deadline = time.monotonic() + 30
        with waiting("the update", "the learner", 0.05):
            while not told_of_it() and time.monotonic() < deadline:
                time.sleep(0.02)  # noqa: ASYNC251 - it blocks the loop, as an update does

    with Watchdog(told.append, every_s=0.02):
        asyncio.run(work())
    assert told_of_it()


def test_a_log_that_cannot_be_read_is_said() -> None:
    def gone() -> str:
        raise OSError("closed")

    assert last_lines(gone) == ("(its log could not be read: closed)",) and last_lines(None) == ()
