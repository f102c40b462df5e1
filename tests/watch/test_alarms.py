"""Alarms: raised and cleared with hysteresis, silent on healthy runs, known again after a resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watched_runs import Witness, config

from airloop.ranks import Ranks
from airloop.runs.run import Run
from airloop.types import Alarm
from airloop.watch.alarms.monitor import Alarms, Halted, rules
from airloop.watch.alarms.rules import Rule, Sign
from airloop.watch.sinks import BackgroundSink, Watchers

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.jsonl"))
DOCS = Path(__file__).parents[2] / "docs" / "alarms.md"


def bad(step: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Sign | None:
    return Sign("seen", "why", "fix") if step["bad"] else None


class Books:
    """The part of a run that alarms use, kept in memory."""

    path, first_step = Path("run"), 0

    def __init__(self, lines: Sequence[Mapping[str, Any]] = ()) -> None:
        self.lines = list(lines)
        self.events: list[tuple[int, str]] = []

    def metrics(self, kind: str) -> list[Mapping[str, Any]]:
        return self.lines

    def record_alarm(self, event: str, alarm: Alarm) -> None:
        self.events.append((alarm.step, event))


def events(steps: Sequence[bool], patience: int, known: int = 0) -> list[tuple[int, str]]:
    """What is written down about a run whose first `known` steps are on disk already."""
    lines = [{"step": i, "bad": b} for i, b in enumerate(steps)]
    books = Books(lines[:known])
    alarms = Alarms(books, Witness(), [Rule("X1", "bad", "note", patience, bad)])  # type: ignore[arg-type]

    async def work() -> None:
        for line in lines[known:]:
            alarms.tell(await alarms.look(line, Ranks()))

    asyncio.run(work())
    return books.events


@given(steps=st.lists(st.booleans(), max_size=30), patience=st.integers(1, 4), cut=st.integers(0, 30))
def test_raised_after_so_many_steps_in_a_row_and_cleared_after_as_many(
    steps: list[bool], patience: int, cut: int
) -> None:
    found = events(steps, patience)
    assert [event for _, event in found] == ["raised", "cleared"] * (len(found) // 2) + ["raised"] * (len(found) % 2)
    last = -1
    for step, event in found:
        run = steps[step - patience + 1 : step + 1]
        assert len(run) == patience and set(run) == {event == "raised"} and step - patience >= last
        last = step
    tail = steps[last + 1 :]
    wanted = len(found) % 2 == 0  # what would change it once more
    assert not any(set(tail[i : i + patience]) == {wanted} for i in range(len(tail) - patience + 1))
    # Resumed anywhere, the same alarms come at the same steps.
    assert events(steps, patience, min(cut, len(steps))) == [e for e in found if e[0] >= min(cut, len(steps))]


def test_there_are_ten_healthy_runs() -> None:
    assert len(HEALTHY) >= 10


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_all_watches_are_silent_on_a_healthy_run(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    books, witness = Books(), Witness()
    alarms = Alarms(books, witness)  # type: ignore[arg-type]

    async def work() -> None:
        for line in lines:
            found = await alarms.look(line, Ranks())
            assert found.worst is None
            alarms.tell(found)

    asyncio.run(work())
    assert witness.alarms == [] and books.events == [] and len(lines) >= 20


class Kept:
    """A sink that remembers alarms."""

    name, url = "memory", None

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []

    def open(self) -> str:
        return "alarms are kept in memory"

    def step(self, flat: dict[str, float], step: int) -> None: ...

    def evaluated(self, flat: dict[str, float], step: int) -> None: ...

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)

    def close(self) -> None: ...


def test_an_alarm_goes_to_the_terminal_to_the_file_and_to_every_sink(tmp_path: Path) -> None:
    run = Run.create(config(tmp_path), "arith")
    display, sink = Witness(), Kept()
    display.run = run
    beside = BackgroundSink(sink, display.say)
    alarms = Alarms(run, Watchers(display, [beside]), [Rule("X1", "bad", "pause", 1, bad)])
    found = asyncio.run(alarms.look({"step": 3, "bad": True}, Ranks()))
    assert not display.alarms and found.worst is not None and not found.refuses  # a step is shown before its alarms
    alarms.tell(found)
    halted = Halted(found.worst, run.path)
    over = asyncio.run(alarms.look({"step": 4, "bad": False}, Ranks()))
    alarms.tell(over)
    assert over.worst is None
    beside.close(30)
    run.close()
    assert halted.alarm.severity == "pause" and "after step 4" in halted.problem
    assert "air train --resume" in halted.fix
    assert display.alarms == sink.alarms == [Alarm("X1", "bad", "pause", 3, "seen", "why", "fix")]
    shown = next(line for line in display.said if "ALARM" in line)
    assert shown == "  ALARM X1 bad, step 4: seen\n        why: why The run pauses.\n        fix: fix"
    assert shown in (run.path / "log.txt").read_text()
    lines = run.alarms()
    assert [(line["event"], line["id"], line["step"]) for line in lines] == [("raised", "X1", 3), ("cleared", "X1", 4)]


def test_every_watch_answers_a_line_of_the_catalogue_and_is_in_the_documentation() -> None:
    text = DOCS.read_text()
    for rule in rules():
        assert f"| {rule.id} | {rule.name.replace('_', ' ')} | {rule.severity} |" in text, rule
    answered = {rule.id for rule in rules()} | {"G7"}
    assert answered >= {"A6", "A10", "B9", "C6", "D6", "D17", "E1", "E2", "E7", "F2", "F4", "F5", "F7", "G7", "G9"}
