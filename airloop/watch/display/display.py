"""What a person sees while a run goes on: on a terminal one live block of lines, elsewhere a line per step and, while
something takes long, how far it is. Either way log.txt in the run has every line."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import Any

from rich.console import Console
from rich.live import Live

from airloop import interrupts
from airloop.runs.run import Run
from airloop.success import NAME, step_success, success_in
from airloop.text.keys import without_keys
from airloop.text.sparkline import sparkline
from airloop.text.visible import visible
from airloop.types import Alarm
from airloop.watch.display.board import Board
from airloop.watch.display.heartbeat import Heartbeat
from airloop.watch.display.resize import Narrower
from airloop.watch.metrics.families import one_line
from airloop.watch.metrics.latency import largest
from airloop.watch.metrics.ledger import one_line as lost_tokens

__all__ = ["Clock", "Display", "sparkline"]

# What the GPU compiles and what the first prompts fill is behind: a step is then as steps will be.
TYPICAL_STEP = 3
# A block that changes more often than this is restless; less often, and it looks stuck.
REDRAWN_PER_S = 4


class Display:
    """A Watcher for the terminal: one live block. Without a terminal it prints plain lines only."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._run: Run | None = None
        self._quiet = quiet
        self._curve: list[float] = []  # of success where there is one, else of the reward
        self._header = False
        self._silent = False  # the last step had no signal
        self._explained = False  # what that means
        self._steps = 0  # shown so far
        self._families: set[str] = set()  # seen so far
        self._board = Board()
        self._live: Live | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def run(self) -> Run | None:
        return self._run

    @run.setter
    def run(self, run: Run | None) -> None:
        self._run = self._board.run = run

    def __enter__(self) -> Display:
        # Not by what rich takes for a terminal: FORCE_COLOR makes it take a file for one.
        if not self._quiet and self.console.file.isatty() and not self.console.is_dumb_terminal:
            self._live = Live(
                self._board,
                console=self.console,
                refresh_per_second=REDRAWN_PER_S,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                vertical_overflow="crop",
            )
            self._live.start()
            self.console.push_render_hook(Narrower(self.console, self._board))
        else:
            self._heartbeat = Heartbeat(lambda: self._board.current, self.say).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._live:
            self._board.end()
            self._live.transient = not self._board.has_steps  # where the run got to stays on the screen
            self.console.pop_render_hook()
            self._live.stop()
            self._live = None

    def phase(self, text: str, total: int = 0) -> None:
        text = _shown(text)
        if self.run:
            self.run.log(text)
        if text.startswith("evaluating"):
            self._board.pace.evaluation_began(time.monotonic())
        interrupts.note_phase(text)
        self._board.phase(text, total)

    def ready(self) -> None:
        """Nothing is under way any more: who is served says what comes next."""
        self._board.end()

    def advance(self, detail: str = "") -> None:
        self._board.advance(_shown(detail))

    def say(self, text: str) -> None:
        text = _shown(text)
        if self._heartbeat:
            self._heartbeat.heard()
        if self.run:
            self.run.log(text)
        if not self._quiet:
            shown = _at_words(text, self.console.width) if self._live else text
            self.console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        """Of every step: said, or, where the block shows it, only kept."""
        if self._live is None:
            self.say(text)
        elif self.run:
            self.run.log(_shown(text))

    def step(self, metrics: dict[str, Any]) -> None:
        found = step_success(metrics)
        if (value := found[1] if found else metrics["reward"]) is not None:
            self._curve.append(value)
        if not self._header:
            self._header = True
            name = _fitted(metrics.get(NAME) or (found[0] if found else ""))
            what = "no-signal  tok/step   grad   gap p99  sample  train"
            self._line(f"  step  {name or 'success':>8s}  reward  {what}   {name or 'reward'} so far")
        learner, rollout, times = metrics["learner"], metrics["rollout"], metrics["times"]
        groups = int(rollout["groups"])
        self._line(
            f"{metrics['step'] + 1:6d}  {_share(found[1] if found else None):>8s}  {_number(metrics['reward']):>6s}  "
            f"{metrics['groups_without_signal']:4d}/{groups:<4d}  {learner.get('tokens_trained', 0):8.0f}  "
            f"{learner['grad_norm']:5.2f}  {learner.get('logprob_gap_p99', 0):8.4f}  {times['sampling']:5.1f}s  "
            f"{times['training']:4.1f}s   {sparkline(self._curve)}"
        )
        self._tell_families(metrics)
        trouble = [text for text in (_missing(metrics), _infrastructure(metrics)) if text]
        self._board.step(metrics, "; ".join(trouble))
        for text in trouble:
            self._line(f"        {text}")
        self._warn(metrics, groups)
        self._steps += 1
        if self._steps == TYPICAL_STEP and (longest := largest(times)):
            self._line(f"        {longest}")

    def _tell_families(self, metrics: dict[str, Any]) -> None:
        """A mixture's mean says little: where there are several families, each is named."""
        found = metrics.get("task", {})
        self._families |= found.keys()
        if len(self._families) > 1 and found:
            self._line(f"        {one_line(found, metrics.get(NAME))}")

    def alarm(self, alarm: Alarm) -> None:
        self._board.alarm(alarm)
        does = {"note": "", "pause": " The run pauses.", "stop": " The run stops."}[alarm.severity]
        self.say(
            f"  ALARM {alarm.id} {alarm.name.replace('_', ' ')}, step {alarm.step + 1}: {alarm.seen}\n"
            f"        why: {alarm.why}{does}\n        fix: {alarm.fix}"
        )

    def _warn(self, metrics: dict[str, Any], groups: int) -> None:
        if groups == 0:
            rollout = metrics["rollout"]
            same, lost = int(rollout.get("dropped_no_signal", 0)), int(rollout.get("dropped_infra_error", 0))
            causes = [f"in {same} every episode scored the same"] if same else []
            causes += [f"{lost} were lost to infrastructure errors"] if lost else []
            self.say(f"        no group was left to train on: {', '.join(causes)}; no update was made")
        elif metrics["groups_without_signal"] < groups:
            self._silent = False
        elif not self._silent:  # said once; the column goes on saying it
            tell = self._line if self._explained else self.say
            self._silent = self._explained = True
            tell(
                f"        no signal: in all {groups} groups every episode scored the same "
                f"(components: {metrics['components'] | metrics['turn_components']}), so this step taught nothing. "
                "Raise orchestrator.rollouts_per_example or the temperature, or look at the trajectories."
            )

    def evaluated(self, metrics: dict[str, Any]) -> None:
        self._board.pace.evaluation_ended(time.monotonic())
        if not metrics["episodes"]:
            self.say(f"        evaluation {metrics['name']}: no episode could be scored")
            return
        parts = [f"reward {_interval(metrics['reward'])}"]
        if found := success_in(metrics, metrics.get(NAME)):
            parts.insert(0, f"{found[0]} {_interval(found[1])}")
        lost = f", {metrics['lost']} lost to infrastructure" if metrics["lost"] else ""
        text = f"{metrics['name']} ({metrics['split']}, {metrics['episodes']} episodes{lost}): {', '.join(parts)}"
        self._board.evaluated(text)
        during = str(metrics["name"]).startswith("step_")
        (self._line if during else self.say)(f"        {text}")
        self._tell_families(metrics)
        if metrics.get("too_good", {}).get("mean"):
            self.say("        some of these scores are too good to be true: this is no candidate for the run's best")


def _shown(text: str) -> str:
    return visible(without_keys(text))


def _at_words(text: str, width: int) -> str:
    """Broken at words, each line indented as it begins. Longer words are left to the terminal: paths stay whole."""
    lines = []
    for line in text.split("\n"):
        indent = " " * min(len(line) - len(line.lstrip(" ")), width // 2)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, tabsize=4
        ) or [""]
    return "\n".join(lines)


def _missing(metrics: dict[str, Any]) -> str:
    return lost_tokens(metrics["ledger"]) if "ledger" in metrics else ""


def _infrastructure(metrics: dict[str, Any]) -> str:
    retried, lost = int(metrics["rollout"].get("retried", 0)), int(metrics["rollout"].get("lost", 0))
    if not retried and not lost:
        return ""
    episodes = int(metrics["rollout"]["episodes"])
    return (
        f"infrastructure errors: attempts repeated: {retried}; episodes dropped: {lost} of {episodes} "
        "(they count in no mean and no reward; their files say what happened)"
    )


def _fitted(name: str) -> str:
    """As the head of a column of eight."""
    return name if len(name) <= 8 else f"{name[:7]}…"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _interval(row: dict[str, float | None]) -> str:
    mean, low, high = (row[name] for name in ("mean", "low", "high"))
    return _number(mean) if low is None or high is None else f"{_number(mean)} [{low:.3f}, {high:.3f}]"


class Clock:
    def __init__(self) -> None:
        self.began = time.perf_counter()

    def __str__(self) -> str:
        minutes, seconds = divmod(int(time.perf_counter() - self.began), 60)
        return f"{minutes} min {seconds:02d} s"
