"""The live display of a run on a terminal: one quiet block of lines that is drawn over itself.

It holds what a person asks while waiting: how far, how good, how fast and why not faster, how much memory, how long
still, is anything wrong, and what is being done now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.spinner import Spinner
from rich.text import Text

from airloop.runs.run import Run
from airloop.success import step_success
from airloop.text.sparkline import sparkline
from airloop.text.visible import one_line
from airloop.types import Alarm
from airloop.watch.display.pace import Pace, in_words
from airloop.watch.display.phase import Phase, waited_for
from airloop.watch.metrics.families import one_line as family_line
from airloop.watch.metrics.latency import PARTS

WIDEST = 88  # a block that is wider is harder to read, and breaks when the window is made narrower
LABEL = 10
RECENT = 5  # steps whose speed and split are shown: one step's are noise
SHOWN_SHARE = 0.05
BAR = 24


class Board:
    def __init__(self) -> None:
        self.run: Run | None = None
        self.pace = Pace()
        self.drawn: list[int] = []  # lengths of the lines that are on the screen
        self._began = time.monotonic()
        self._spinner = Spinner("dots")
        self.current: Phase | None = None
        self._took: dict[str, float] = {}  # what the last phase of each kind took
        self._steps: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        self._rewards: list[float] = []
        self._shares: list[float] = []
        self._share = ""  # the name of what is success here
        self._families: dict[str, dict[str, float]] = {}
        self._evaluation = self._alarm = self._trouble = ""
        self._severity = "note"

    # --- what it is told ------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    def phase(self, text: str, total: int) -> None:
        self.end()
        phase = Phase(text, total)
        phase.usual_s = self._took.get(phase.kind)
        self.current = phase

    def advance(self, detail: str = "") -> None:
        if self.current:
            self.current.advance(detail)

    def step(self, metrics: Mapping[str, Any], trouble: str) -> None:
        if not self._steps and self.run and metrics["step"] > 0:  # resumed: the curve begins where the run did
            for before in self.run.metrics("train"):
                if before["step"] < metrics["step"]:
                    self._remember(before)
        self._remember(metrics)
        self._steps.append(metrics)
        self._families |= metrics.get("task", {})
        self._trouble = trouble
        self.pace.step_ended(time.monotonic(), sampled=not _reused(metrics))

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get("reward") is not None:
            self._rewards.append(metrics["reward"])
        if found := step_success(metrics):
            self._share, value = found
            self._shares.append(value)

    def evaluated(self, text: str) -> None:
        self._evaluation = text

    def alarm(self, alarm: Alarm) -> None:
        self._severity = alarm.severity
        self._alarm = f"{alarm.id} {alarm.name.replace('_', ' ')}, step {alarm.step + 1}: {alarm.seen}"

    def end(self) -> None:
        """What stays on the screen has no work under way."""
        if self.current:
            self._took[self.current.kind] = self.current.lasted()
        self.current = None

    # --- what is seen ---------------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, min(options.max_width, WIDEST))
        lines = list(self._lines(width)) if self._steps else []
        if self.current:
            lines.append(_phase_line(self.current, self._spinner, width))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            line.rstrip()
            line.truncate(width, overflow="ellipsis")
        self.drawn = [line.cell_len for line in lines]
        yield from lines

    def _lines(self, width: int) -> Iterator[Text]:
        yield self._head(width)
        yield self._progress(width)
        curve = max(8, min(BAR, width - 46))
        if self._shares:
            share = Text(sparkline(self._shares, curve), "cyan")
            label = one_line(self._share, LABEL - 1)
            yield _row(label, f"{self._shares[-1]:.0%}", share, _range(self._shares, "{:.0%}"))
        rewards = Text(sparkline(self._rewards, curve), "cyan")
        yield _row("reward", _number(self._rewards[-1:]), rewards, _range(self._rewards, "{:.3f}"))
        yield self._signal()
        if len(self._families) > 1:
            yield _row(
                "tasks", "", Text(family_line(dict(sorted(self._families.items())), self._share or None)), Text()
            )
        yield self._speed()
        if memory := self._memory():
            yield _row("memory", memory[0], Text(memory[1], "dim"), Text())
        if self._evaluation:
            yield _row("held out", "", Text(one_line(self._evaluation, width)), Text())
        if self._trouble:
            yield _row("lost", "", Text(one_line(self._trouble, width), "yellow"), Text())
        style = "dim" if not self._alarm else "yellow" if self._severity == "note" else "bold red"
        yield _row("alarm", "", Text(one_line(self._alarm, width) or "none", style), Text())

    def _head(self, width: int) -> Text:
        name = self.run.name if self.run else "run"
        spent = _clock(time.monotonic() - self._began)
        rule = "─" * max(2, width - len(name) - len(spent) - 6)
        return Text.assemble(("── ", "dim"), (one_line(name, width - 14), "bold"), (f" {rule} {spent}", "dim"))

    def _progress(self, width: int) -> Text:
        done, total = self._steps[-1]["step"] + 1, self._total()
        full = max(8, min(BAR, width - 46))
        return _row("step", f"{done}/{total}", _bar(done, total, full), Text(self._left(done, total)))

    def _left(self, done: int, total: int) -> str:
        if done >= total:
            return "the last evaluation is left" if self.current else "done"
        interval = self.run.config.orchestrator.eval.interval if self.run else 0
        evaluations = 1 + (total // interval - done // interval if interval else 0)
        left = self.pace.left(time.monotonic(), total - done, evaluations)
        return f"{in_words(left)} left" if left else "time left: known after the next step"

    def _total(self) -> int:
        """Of several ranks, only they know what a budget of time has made of it: their metrics say so."""
        planned = self._steps[-1].get("plan", {}).get("max_steps", 0)
        return int(planned if planned or not self.run else self.run.config.max_steps)

    def _signal(self) -> Text:
        last = self._steps[-1]
        groups = int(last["rollout"]["groups"])
        useful = groups - int(last["groups_without_signal"])
        text = Text("groups in which episodes differ", "dim") if useful else Text("nothing to learn from", "yellow")
        return _row("signal", f"{useful}/{groups}", text, Text())

    def _speed(self) -> Text:
        """Sampled tokens per second of whole steps, and where the time of these steps went."""
        sampled = [m for m in self._steps if not _reused(m)]
        times = [m["times"] for m in sampled]
        seconds = sum(t.get(part, 0.0) for t in times for part in ("sampling", "training", "sync"))
        tokens = sum(m.get("ledger", {}).get("tokens", 0) for m in sampled)
        speed = f"{tokens / seconds:,.0f} tok/s" if tokens and seconds else "–"
        parts = {part: sum(t.get(part, 0.0) for t in times) for part in PARTS}
        whole = sum(parts.values())
        shares = sorted(((value / whole, part) for part, value in parts.items()), reverse=True) if whole > 0 else []
        named = [f"{part} {share:.0%}" for share, part in shares if share >= SHOWN_SHARE]
        return _row("speed", speed, Text("  ".join(named), "dim"), Text())

    def _memory(self) -> tuple[str, str] | None:
        found = self._steps[-1].get("memory") or {}
        if "gpu_used" in found:
            others = f"process {_gib(found['used'])}" if "used" in found else ""
            return _gib(found["gpu_used"]), f"GPU, {_gib(found['gpu_available'])} free  {others}"
        return (_gib(found["used"]), f"{_gib(found['available'])} free") if "used" in found else None


def _phase_line(phase: Phase, spinner: Spinner, width: int) -> Text:
    frame = spinner.render(time.monotonic())
    line = Text.assemble(" ", (frame.plain if isinstance(frame, Text) else "·", "green"), " ")
    tail = _clock(phase.lasted())
    if phase.detail:
        tail = f"{phase.detail}  {tail}"
    if phase.total:
        tail = f"{phase.done}/{phase.total}  {tail}"
        room = min(BAR, width - len(phase.text) - len(tail) - 10)
        if room >= 8:
            bar = _bar(phase.done, phase.total, room)
            return line + Text(one_line(phase.text, width)) + Text("  ") + bar + Text(f"  {tail}", "dim")
    elif waited := waited_for():
        tail = f"{one_line(waited, width // 2)}  {tail}"
    return line + Text(one_line(phase.text, max(10, width - len(tail) - 6))) + Text(f"  {tail}", "dim")


def _reused(metrics: Mapping[str, Any]) -> bool:
    """Whether episodes of the step were read back after a restart: its times are then no measure of speed."""
    return bool(metrics["rollout"].get("reused"))


def _row(label: str, value: str, what: Text, more: Text) -> Text:
    head = Text.assemble(" ", (f"{label:{LABEL}s}", "dim"))
    if value:
        head += Text(f"{value:<10s} ", "bold")
    return head + what + Text("  ") + more


def _range(values: list[float], form: str) -> Text:
    if len(values) < 2:
        return Text()
    return Text(f"first {form.format(values[0])}  best {form.format(max(values))}", "dim")


def _bar(done: int, total: int, width: int) -> Text:
    """Two signs, so that it can be read without colours."""
    filled = min(width, width * done // max(1, total))
    return Text.assemble(("━" * filled, "green"), ("╌" * (width - filled), "dim"))


def _number(values: list[float]) -> str:
    return f"{values[0]:.3f}" if values else "–"


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
