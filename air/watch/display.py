"""What a person sees while a run goes on: a line per step, and, on a terminal, what is being done now."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from air.run import Run
from air.watch.alarms import Alarm
from air.watch.families import one_line
from air.watch.latency import largest
from air.watch.ledger import one_line as lost_tokens

# What the GPU compiles and what the first prompts fill is behind: a step is then as steps will be.
TYPICAL_STEP = 3
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 24) -> str:
    values = values[-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int((v - low) / span * 7.999))] for v in values)


class Display:
    """Implements loop.Watcher. Without a terminal it prints plain lines only."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.run: Run | None = None
        self._quiet = quiet
        self._rewards: list[float] = []
        self._header = False
        self._silent = False  # the last step had no signal
        self._steps = 0  # shown so far
        self._families: set[str] = set()  # seen so far
        self._live = self.console.is_terminal and not quiet
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Display:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def phase(self, text: str, total: int = 0) -> None:
        if self.run:
            self.run.log(text)
        if not self._live:
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(text, total=total or None)

    def episode(self) -> None:
        if self._live and self._task is not None:
            self._progress.advance(self._task)

    def say(self, text: str) -> None:
        if self.run:
            self.run.log(text)
        if not self._quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    def step(self, metrics: dict[str, Any]) -> None:
        if metrics["reward"] is not None:
            self._rewards.append(metrics["reward"])
        if not self._header:
            self._header = True
            self.say("  step  reward  improved  no-signal  tok/step   grad   gap p99  sample  train   reward so far")
        learner, rollout, times = metrics["learner"], metrics["rollout"], metrics["times"]
        groups, improved = int(rollout["groups"]), _share(metrics["metrics"].get("improved"))
        self.say(
            f"{metrics['step'] + 1:6d}  {_number(metrics['reward']):>6s}  {improved:>8s}  "
            f"{metrics['groups_without_signal']:4d}/{groups:<4d}  {learner.get('tokens_trained', 0):8.0f}  "
            f"{learner['grad_norm']:5.2f}  {learner.get('logprob_gap_p99', 0):8.4f}  {times['sampling']:5.1f}s  "
            f"{times['training']:4.1f}s   {sparkline(self._rewards)}"
        )
        self._tell_families(metrics)
        self._warn(metrics, groups)
        self._steps += 1
        if self._steps == TYPICAL_STEP and (longest := largest(times)):
            self.say(f"        {longest}")

    def _tell_families(self, metrics: dict[str, Any]) -> None:
        """A mixture's mean says little: where there are several families, each is named."""
        found = metrics.get("task", {})
        self._families |= found.keys()
        if len(self._families) > 1 and found:
            self.say(f"        {one_line(found)}")

    def alarm(self, alarm: Alarm) -> None:
        does = {"note": "", "pause": " The run pauses.", "stop": " The run stops."}[alarm.severity]
        self.say(
            f"  ALARM {alarm.id} {alarm.name.replace('_', ' ')}, step {alarm.step + 1}: {alarm.seen}\n"
            f"        why: {alarm.why}{does}\n        fix: {alarm.fix}"
        )

    def _warn(self, metrics: dict[str, Any], groups: int) -> None:
        if "ledger" in metrics and (missing := lost_tokens(metrics["ledger"])):
            self.say(f"        {missing}")
        retried, lost = int(metrics["rollout"].get("retried", 0)), int(metrics["rollout"].get("lost", 0))
        if retried or lost:
            episodes = int(metrics["rollout"]["episodes"])
            self.say(
                f"        infrastructure errors: attempts repeated: {retried}; episodes dropped: {lost} of {episodes} "
                "(they count in no mean and no reward; their files say what happened)"
            )
        if groups == 0:
            self.say("        no group was left to train on: every episode met infrastructure errors or was filtered")
        elif metrics["groups_without_signal"] < groups:
            self._silent = False
        elif not self._silent:  # said once; the column goes on saying it
            self._silent = True
            self.say(
                f"        no signal: in all {groups} groups every episode scored the same "
                f"(components: {metrics['components'] | metrics['turn_components']}), so this step taught nothing. "
                "Raise orchestrator.rollouts_per_example or the temperature, or look at the trajectories."
            )

    def evaluated(self, metrics: dict[str, Any]) -> None:
        if not metrics["episodes"]:
            self.say(f"        evaluation {metrics['name']}: no episode could be scored")
            return
        parts = [f"reward {_interval(metrics['reward'])}"]
        if "improved" in metrics:
            parts.append(f"improved {_interval(metrics['improved'])}")
        lost = f", {metrics['lost']} lost to infrastructure" if metrics["lost"] else ""
        self.say(
            f"        {metrics['name']} ({metrics['split']}, {metrics['episodes']} episodes{lost}): {', '.join(parts)}"
        )
        self._tell_families(metrics)
        if metrics.get("too_good", {}).get("mean"):
            self.say("        some of these scores are too good to be true: this is no candidate for the run's best")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _interval(row: dict[str, float]) -> str:
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


class Clock:
    def __init__(self) -> None:
        self.began = time.perf_counter()

    def __str__(self) -> str:
        minutes, seconds = divmod(int(time.perf_counter() - self.began), 60)
        return f"{minutes} min {seconds:02d} s"
