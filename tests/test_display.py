"""What a person sees: a calm block on a terminal, plain lines elsewhere, and the reason when a step taught nothing."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.tiny_runs import write_config

from airloop.config import load_config
from airloop.runs.run import Run
from airloop.text.sparkline import squeezed
from airloop.text.visible import one_line, visible
from airloop.types import Alarm
from airloop.watch.display.board import Board
from airloop.watch.display.display import Display, sparkline
from airloop.watch.display.pace import Pace, in_words
from airloop.watch.display.resize import broken, reflows
from airloop.watch.display.summary import text_plot

HEALTHY = Path(__file__).parent / "watch/healthy/grpo.jsonl"
ALARM = Alarm("E1", "no_signal_yet", "note", 3, "In all 4 groups every episode scored the same.", "why", "fix")
EVALUATION = {
    "name": "step_0002",
    "split": "eval",
    "episodes": 8,
    "lost": 0,
    "reward": {"mean": 0.5, "low": 0.25, "high": 0.75},
}


def metrics(step: int, reward: float | None, silent: int) -> dict[str, Any]:
    return {
        "step": step,
        "reward": reward,
        "components": {"correct": 0.0},
        "turn_components": {},
        "metrics": {},
        "groups_without_signal": silent,
        "rollout": {"groups": 4},
        "learner": {"grad_norm": 0.0},
        "times": {"sampling": 1.0, "training": 1.0},
    }


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in HEALTHY.read_text().splitlines()]


def test_E1_a_step_without_signal_says_why_once_until_signal_returns() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=200))
    for step, silent in enumerate([0, 4, 4, 1, 4]):
        display.step(metrics(step, 0.5, silent))
    display.step(metrics(5, None, 0))
    text = out.getvalue()
    assert text.count("no signal: in all 4 groups every episode scored the same") == 2
    assert "rollouts_per_example" in text and "{'correct': 0.0}" in text
    assert text.splitlines()[-1].split()[:2] == ["6", "–"]


def test_plots_take_constant_and_single_values_and_what_is_no_number() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁" and sparkline([]) == ""
    assert sparkline([0.0, float("nan"), None, 1.0, float("inf")]) == "▁  █ "
    assert squeezed([0.0, 2.0, 4.0, None], 2) == [1.0, 4.0] and squeezed([1.0], 5) == [1.0]
    assert text_plot([2.0]).count("●") == 1
    assert max(map(len, text_plot([float(i % 7) for i in range(500)]).splitlines())) <= 80


# --- without a terminal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", ["", "1"])
def test_without_a_terminal_there_are_plain_lines_and_nothing_else(force: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where FORCE_COLOR makes rich take a file for a terminal."""
    if force:
        monkeypatch.setenv("FORCE_COLOR", force)
    out = io.StringIO()
    with Display(Console(file=out, width=200, highlight=False)) as display:
        display.phase("step 1/3: sampling", 4)
        for line in recorded()[:3]:
            display.advance()
            display.step(line)
        display.evaluated(EVALUATION)
        display.alarm(ALARM)
    text = out.getvalue()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["step", "correct", "reward"] and lines[0].endswith("correct so far")
    assert [row.split()[0] for row in lines[1:4]] == list("123") and all("%" in row.split()[1] for row in lines[1:4])
    assert "        step_0002 (eval, 8 episodes): reward 0.500 [0.250, 0.750]" in lines
    assert any(line.startswith("  ALARM E1 no signal yet, step 4: In all") for line in lines)


def test_control_codes_are_shown_never_obeyed() -> None:
    out = io.StringIO()
    Display(Console(file=out, width=200)).say("a\x1b[2J\x9b31m\x07b\u202e\ud800\r\nc")
    assert out.getvalue() == "a\\x1b[2J\\x9b31m\\x07b\\u202e\\ud800\nc\n"
    assert visible("plain text, ümläute, 日本語") == "plain text, ümläute, 日本語"
    assert one_line("a\n\nb   c" + "x" * 10_000, 8) == "a b cxx…"


# --- the block ----------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    run = Run.create(load_config(["@", str(write_config(tmp_path)), "--max_steps", "30"]), "arith")
    board = Board()
    board.run = run
    for line in recorded()[:9]:
        board.step(line, "")
    board.evaluated("step_0008 (eval, 8 episodes): reward 0.5")
    board.alarm(ALARM)
    board.phase("step 10/30: sampling", 32)
    board.advance()
    yield board
    run.close()


def drawn(board: Board, width: int, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, height=40, force_terminal=True, no_color=not colour).print(board)
    return out.getvalue()


def test_the_block_says_how_far_how_good_how_fast_and_what_is_wrong(board: Board) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(board, 100))
    rows = {line.split()[0]: line for line in text.splitlines() if line[0] == " "}
    last = recorded()[8]
    assert f"9/30       {'━' * 7}{'╌' * 17}" in rows["step"] and "left" in rows["step"]
    assert f"{last['reward']:.3f}" in rows["reward"] and "best" in rows["reward"]
    assert rows["correct"].split()[1].endswith("%")
    useful = last["rollout"]["groups"] - last["groups_without_signal"]
    assert f"{useful:.0f}/{last['rollout']['groups']:.0f}" in rows["signal"]
    assert re.search(r"\d+ tok/s  .*(queue|training) \d+%", rows["speed"])
    used, free = last["memory"]["used"], last["memory"]["available"] / 1024
    assert f"{used:.0f} MiB" in rows["memory"] and f"{free:.1f} GiB free" in rows["memory"]
    assert "step_0008" in rows["held"] and "E1 no signal yet, step 4: In all 4 groups" in rows["alarm"]
    assert "step 10/30: sampling" in text.splitlines()[-1] and "1/32" in text.splitlines()[-1]


@pytest.mark.parametrize("width", [24, 40, 60, 100, 300])
def test_no_line_is_wider_than_the_terminal(board: Board, width: int) -> None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn(board, width))
    assert max(len(line) for line in plain.splitlines()) <= width
    assert len(plain.splitlines()) == 10  # as many as in a wide one: it does not jump


def test_without_colours_nothing_is_lost(board: Board) -> None:
    def codes(text: str) -> set[str]:
        return set(re.findall(r"\x1b\[([0-9;]*)m", text))

    assert codes(drawn(board, 100, colour=False)) <= {"0", "1", "2", ""}  # bold and dim are no colours
    assert codes(drawn(board, 100, colour=True)) & {"32", "33", "36"}


def test_a_resumed_run_shows_its_whole_curve(tmp_path: Path) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path)), "--max_steps", "30"]), "arith")
    lines = recorded()
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:6]))
    board = Board()
    board.run = run
    board.step(lines[5], "")
    run.close()
    row = next(line for line in drawn(board, 100).splitlines() if "reward" in line)
    assert len(re.findall("[▁▂▃▄▅▆▇█]", row)) == 6


# --- how long still -----------------------------------------------------------------------------------------


def test_what_is_left_follows_the_last_steps_and_counts_evaluations_apart() -> None:
    pace = Pace()
    now = 100.0
    pace.evaluation_began(now - 50)
    pace.evaluation_ended(now - 20)  # before the first step: 30 s
    pace.step_ended(now)  # compiles
    assert pace.left(now, 9, 1) is None
    for _ in range(4):
        now += 60
        pace.step_ended(now)
    pace.evaluation_began(now)
    pace.evaluation_ended(now + 30)
    now += 30
    assert pace.left(now, 5, 2) == (360.0, 360.0)
    pace.step_ended(now, sampled=False)  # read back after a restart
    assert pace.left(now, 5, 2) == (360.0, 360.0)
    assert pace.left(now + 20, 5, 2) == (340.0, 340.0)
    assert pace.left(now + 500, 1, 0) == (0.0, 0.0)  # late, but never negative


def test_a_spread_is_said_as_one() -> None:
    pace = Pace()
    now = 0.0
    pace.step_ended(now)
    for seconds in (30, 90, 30, 90, 30, 90):
        now += seconds
        pace.step_ended(now)
    left = pace.left(now, 20, 0)
    assert left is not None and left[0] == 600 and left[1] == 1800 and in_words(left) == "10–30 min"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((20, 30), "under 1 min"),
        ((350, 370), "about 6 min"),
        ((240, 420), "4–7 min"),
        ((3600, 3700), "about 1 h"),
        ((7800, 10800), "2 h 10 min – 3 h"),
        ((200_000, 200_100), "about 2 d 7 h"),
    ],
)
def test_time_is_said_no_more_exactly_than_it_is_known(seconds: tuple[float, float], words: str) -> None:
    assert in_words(seconds) == words


# --- on a terminal ------------------------------------------------------------------------------------------


class Terminal:
    """A real pseudo-terminal of some size; everything that is written to it is kept."""

    def __init__(self, columns: int, rows: int) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.file = os.fdopen(theirs, "w")
        self._seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._seen += os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                return

    def until(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words.encode() not in self._seen:
            assert time.monotonic() < deadline, self._seen
            time.sleep(0.02)

    def close(self) -> str:
        self.file.close()
        self._reader.join(5)
        os.close(self._ours)
        return self._seen.decode()


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("plain_terminal")
def test_on_a_terminal_steps_are_drawn_and_only_news_scroll(tmp_path: Path) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path)), "--max_steps", "30"]), "arith")
    terminal = Terminal(100, 30)
    with Display(Console(file=terminal.file, highlight=False)) as display:
        display.run = run
        display.say("run somewhere")
        for line in recorded()[:4]:
            display.phase(f"step {line['step'] + 1}/30: sampling", 32)
            display.step(line)
        display.evaluated(EVALUATION)
        display.alarm(ALARM)
        display.evaluated(EVALUATION | {"name": "after", "split": "test"})
    run.close()
    seen = terminal.close()
    assert "run somewhere" in seen and "ALARM E1" in seen and "        after (test, 8 episodes)" in seen
    assert "tok/step" not in seen and "        step_0002 (eval" not in seen  # drawn in the block
    assert "held out" in seen and "4/30" in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor is back
    log = (run.path / "log.txt").read_text()
    assert (
        "tok/step" in log and "        step_0002 (eval" in log and len(re.findall(r"^\S+ \S+ +[1-4] ", log, re.M)) == 4
    )


@pytest.mark.usefixtures("plain_terminal")
def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal(100, 30)
    with Display(Console(file=terminal.file, highlight=False)) as display:
        display.step(recorded()[0])
    seen = terminal.close()
    assert "tok/step" in seen and "\x1b" not in seen


@pytest.mark.usefixtures("plain_terminal")
def test_a_command_without_steps_leaves_nothing_of_the_block() -> None:
    terminal = Terminal(80, 24)
    with Display(Console(file=terminal.file, highlight=False)) as display:
        display.phase("loading the model")
        terminal.until("loading the model")
    seen = terminal.close()
    assert "loading the model" in seen and seen.rindex("\x1b[2K") > seen.rindex("loading the model")


PROGRAM = """
import json, sys, time
from rich.console import Console
from airloop.watch.display.display import Display
lines = [json.loads(line) for line in open(sys.argv[1])]
with Display(Console(highlight=False)) as display:
    display.say("first words")
    for line in lines[:5]:
        display.step(line)
    display.phase("step 6/30: sampling", 32)
    time.sleep(60)
"""


BLOCK = ["run", "step", "correct", "reward", "signal", "speed", "memory", "alarm", "what is done now"]


def screen(socket: str) -> list[str]:
    shown = subprocess.run(["tmux", "-L", socket, "capture-pane", "-p", "-t", "a"], capture_output=True, text=True)
    return shown.stdout.rstrip("\n").split("\n")


def until(socket: str, words: str, seconds: float = 30) -> list[str]:
    deadline = time.monotonic() + seconds
    while words not in "\n".join(shown := screen(socket)):
        assert time.monotonic() < deadline, "\n".join(shown)
        time.sleep(0.1)
    return shown


def whole_block(socket: str, which: str, seconds: float = 30) -> list[str]:
    """The screen, once its last lines are the whole block, and nothing but it. It may be caught while it is drawn."""
    deadline = time.monotonic() + seconds
    while True:
        shown = screen(socket)
        words = [line.split() for line in shown[-len(BLOCK) : -1]]
        labels = [
            w[0 if line[0] == " " else 1] for w, line in zip(words, shown[-len(BLOCK) : -1], strict=True) if len(w) > 1
        ]
        if labels == BLOCK[:-1] and "step 6/30: sampling" in shown[-1]:
            return shown
        assert time.monotonic() < deadline, which + "\n" + "\n".join(shown)
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.usefixtures("plain_terminal")
def test_a_window_made_narrower_and_ctrl_c_leave_a_clean_screen(tmp_path: Path) -> None:
    program, socket = tmp_path / "program.py", f"air-test-{os.getpid()}"
    program.write_text(PROGRAM)
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    shell = f"{sys.executable} {program} {HEALTHY}; echo the end; sleep 60"
    start = [*tmux, "new-session", "-d", "-s", "a", "-x", "100", "-y", "30", shell]
    # The environment as Python knows it: readline, which pytest imports, puts COLUMNS behind its back.
    subprocess.run(start, check=True, env=dict(os.environ))
    try:
        wide = whole_block(socket, "wide")
        subprocess.run([*tmux, "resize-window", "-t", "a", "-x", "56", "-y", "20"], check=True)
        time.sleep(1)
        whole_block(socket, "narrow")  # what a narrower window broke may be left above, never within or below
        assert wide[:1] == ["first words"] and len(wide) == 1 + len(BLOCK)
        found = subprocess.run(
            [*tmux, "list-panes", "-F", "#{pane_pid}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        child = Path(f"/proc/{found}/task/{found}/children").read_text().split()[0]
        os.kill(int(child), signal.SIGINT)
        last = until(socket, "the end")
        assert "sampling" not in "\n".join(line for line in last if not line.startswith((" ", "Trace")))
        flag = subprocess.run([*tmux, "display", "-p", "-t", "a", "#{cursor_flag}"], capture_output=True, text=True)
        assert flag.stdout.strip() == "1"
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def test_lines_that_a_narrower_window_breaks_are_counted() -> None:
    assert broken([10, 100, 60], 60) == 1 and broken([121, 60], 60) == 2 and broken([], 60) == 0
    assert reflows({"TERM": "xterm-256color"}) and reflows({"TERM": "screen", "TMUX": "/tmp/x"})
    assert not reflows({"TERM": "xterm", "XTERM_VERSION": "XTerm(370)"}) and not reflows({"TERM": "linux"})
