"""Passes on a CPU find out by themselves whether all threads or one are quicker."""

from __future__ import annotations

import random

import pytest
import torch

import airloop.threads
from airloop.threads import Threads, threads_to_choose_from


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airloop.threads, "is_busy", lambda: False)


def play(threads: Threads, seconds: dict[int, float], steps: int, rows: int = 8) -> list[int]:
    rng = random.Random(0)
    chosen = []
    for _ in range(steps):
        count = threads.choose(rows)
        threads.took(count, rows, seconds[count] * rng.uniform(0.9, 1.1))
        chosen.append(count)
    return chosen


@pytest.mark.parametrize(
    ("seconds", "better"), [({1: 0.02, 2: 0.01}, 2), ({1: 0.04, 2: 0.5}, 1), ({1: 0.02, 2: 0.0}, 2)]
)
def test_nearly_all_steps_are_made_the_quicker_way(seconds: dict[int, float], better: int) -> None:
    chosen = play(Threads(2), seconds, 640)
    assert chosen.count(better) >= 0.97 * len(chosen) and set(chosen) == {1, 2}


def test_it_follows_when_other_work_comes_and_goes() -> None:
    threads = Threads(2)
    assert play(threads, {1: 0.02, 2: 0.012}, 100)[-10:] == [2] * 10
    assert play(threads, {1: 0.04, 2: 0.5}, 100)[-10:].count(1) >= 9
    assert play(threads, {1: 0.02, 2: 0.012}, 400)[-10:].count(2) >= 9


def test_a_first_pass_that_took_memory_decides_nothing() -> None:
    threads = Threads(2)
    for count, seconds in ((2, 9.0), (2, 1.0), (1, 1.9), (1, 1.9)):
        assert threads.choose(512) == count
        threads.took(count, 512, seconds)
    assert threads.choose(512) == 2


def test_on_a_busy_machine_one_thread_is_tried_first_and_a_hopeless_way_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airloop.threads, "is_busy", lambda: True)
    assert play(Threads(2), {1: 0.04, 2: 0.8}, 6) == [1, 1, 2, 1, 1, 1]
    monkeypatch.setattr(airloop.threads, "is_busy", lambda: False)
    assert play(Threads(2), {1: 0.04, 2: 0.8}, 6) == [2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(("load", "busy"), [(0.5, False), (2.9, False), (3.1, True), (None, False)])
def test_a_machine_is_busy_by_its_load(load: float | None, busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def loadavg() -> tuple[float, float, float]:
        if load is None:
            raise OSError
        return load, 9.0, 9.0

    monkeypatch.setattr("os.getloadavg", loadavg)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert airloop.threads.is_busy() is busy


def test_small_and_large_batches_are_told_apart() -> None:
    threads = Threads(2)
    for _ in range(50):
        play(threads, {1: 0.01, 2: 0.1}, 1, rows=2)
        play(threads, {1: 0.1, 2: 0.06}, 1, rows=32)
    assert threads.choose(3) == 1 and threads.choose(33) == 2


def test_a_number_that_is_not_ours_to_choose_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    found = threads_to_choose_from(lockstep=False)
    assert found is not None and found.most == 4
    assert threads_to_choose_from(lockstep=True) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_to_choose_from(lockstep=False) is None
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert threads_to_choose_from(lockstep=False) is None
