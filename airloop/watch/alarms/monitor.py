"""Alarms: what is wrong while a run goes on. Each has evidence and a fix; severity decides what happens next.

An alarm is a small object that is shown every step's metrics and ledger and says whether its condition holds. It is
raised when the condition has held for `patience` steps in a row, and cleared when it has been gone for as long: so
one odd step raises nothing, and a value that hovers around its threshold does not flicker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airloop.engine.base import EngineFailed
from airloop.errors import AirError
from airloop.events import Watcher
from airloop.ranks import Ranks
from airloop.runs.run import Run
from airloop.types import Alarm
from airloop.waits import Stall, Watchdog
from airloop.watch.alarms import episode_rules, learner_rules, success_rules
from airloop.watch.alarms.rules import RULES, AlarmRule, Rule, Sign, Step

REGISTERED = (episode_rules, learner_rules, success_rules)  # by being imported


def rules() -> list[Rule]:
    """All that are looked at in every step."""
    return sorted(RULES, key=lambda rule: (rule.id, rule.name))  # whatever was imported first


class Halted(AirError):
    """An alarm ended the run before its last step. `alarm` says which; everything is saved. `refusals`: how often its
    step has been refused by now, if it was."""

    def __init__(self, alarm: Alarm, run: Path, refusals: int = 0) -> None:
        word = "paused" if alarm.severity == "pause" else "stopped"
        go_on = f"go on with `air train --resume {run}`"
        fix = f"{alarm.fix} Then {go_on}; it goes on as it is, too."
        if refusals:
            fix = f"{alarm.fix} Then {go_on}: {set_aside(run, alarm.step, refusals)}"
        super().__init__(f"Alarm {alarm.id} {word} the run after step {alarm.step + 1}. {alarm.seen} {alarm.why}", fix)
        self.alarm = alarm


def set_aside(run: Path, step: int, refusals: int) -> str:
    """Where a step is that was refused, and whether it helps to sample it anew."""
    text = (
        f"step {step + 1} is set aside in {run / 'trajectories' / f'refused_{step:04d}_{refusals}'} and is sampled "
        "anew, with other seeds."
    )
    if refusals > 1:
        text += f" It has been refused {refusals} times in a row: without a change that will not help."
    return text


@dataclass(frozen=True)
class Found:
    """What one step changed; `worst` is what ends the run, if anything does, and all ranks know it."""

    raised: Sequence[Alarm] = ()
    cleared: Sequence[Alarm] = ()
    worst: Alarm | None = None

    @property
    def refuses(self) -> bool:
        """Whether the step's update must not count."""
        return self.worst is not None and self.worst.severity == "stop"


class _State:
    """Hysteresis of one watch: it is up or not, and for how many steps in a row its condition has been otherwise."""

    def __init__(self, watch: AlarmRule) -> None:
        self.watch = watch
        self.up = False
        self.otherwise = 0

    def see(self, step: Step, before: Sequence[Step]) -> tuple[str, Sign | None] | None:
        sign = self.watch.look(step, before)
        self.otherwise = self.otherwise + 1 if (sign is not None) != self.up else 0
        if self.otherwise < self.watch.patience:
            return None
        self.up, self.otherwise = not self.up, 0
        return ("raised" if self.up else "cleared"), sign


class Alarms:
    """Looks at every step of a run. Its state is a function of the steps on disk: a resumed run knows what has been
    raised, so a pause that somebody has looked at is not repeated. A step that was refused is in no state."""

    def __init__(self, run: Run, watcher: Watcher, watched: Sequence[AlarmRule] | None = None) -> None:
        self._run = run
        self._watcher = watcher
        chosen: Sequence[AlarmRule] = rules() if watched is None else watched
        self._states = [_State(watch) for watch in chosen]
        self._before: list[Step] = []
        for step in run.metrics("train"):
            self._changes(step)

    async def look(self, step: Step, ranks: Ranks) -> Found:
        """What is raised and cleared by a step, decided by the first rank for all; nobody is told yet."""
        raised, cleared = [], []
        for state, what, sign in self._changes(step) if ranks.first else ():
            rule, at = state.watch, step["step"]
            if what == "cleared" or sign is None:
                cleared.append(Alarm(rule.id, rule.name, rule.severity, at, "", "", ""))
            else:
                raised.append(Alarm(rule.id, rule.name, rule.severity, at, sign.seen, sign.why, sign.fix))
        ending = [alarm for alarm in raised if alarm.severity != "note"]
        worst = next((alarm for alarm in reversed(ending) if alarm.severity == "stop"), next(iter(ending), None))
        worst = (await ranks.all_gather(worst, "whether an alarm ends the run"))[0]
        return Found(raised, cleared, worst)

    def tell(self, found: Found) -> None:
        for alarm in found.cleared:
            self._run.record_alarm("cleared", alarm)
            self._watcher.say(f"        alarm {alarm.id} {alarm.name.replace('_', ' ')} is over")
        for alarm in found.raised:
            self.now(alarm)

    def refused(self, step: int, why: str, refusals: int) -> None:
        """A step whose update could not be made is sampled anew; that it was so is over with it."""
        alarm = Alarm(
            "G12",
            "step_refused",
            "note",
            step,
            why,
            "Its episodes led to an update that would have spoilt the weights, which are as they were before.",
            f"nothing, if it stays at that: {set_aside(self._run.path, step, refusals)}",
        )
        self.now(alarm)
        self._run.record_alarm("cleared", alarm)

    def now(self, alarm: Alarm) -> None:
        """To alarms.jsonl and to whoever looks on."""
        self._run.record_alarm("raised", alarm)
        self._watcher.alarm(alarm)

    @contextlib.contextmanager
    def monitoring(self) -> Iterator[None]:
        """Between steps: waits that last too long are told of, and an engine that fails is an alarm."""
        with Watchdog(self._stalled):
            try:
                yield
            except AirError as error:
                failed = next((e for e in (error, error.__cause__) if isinstance(e, EngineFailed)), None)
                if failed:
                    why = "Without the engine nothing can be sampled: the run stops now, not at its next deadline."
                    self.now(Alarm("G7", "engine_failed", "stop", self._step, failed.problem, why, failed.fix))
                raise

    @property
    def _step(self) -> int:
        return self._before[-1]["step"] + 1 if self._before else self._run.first_step

    def _changes(self, step: Step) -> list[tuple[_State, str, Sign | None]]:
        found = [(state, *change) for state in self._states if (change := state.see(step, self._before))]
        self._before.append(step)
        return found

    def _stalled(self, stall: Stall) -> None:
        """Called from the watchdog's thread."""
        why = (
            "Its owner should have answered by now; it is given up where it has a deadline of its own."
            if stall.overdue
            else "All else waits for it, so far within its deadline."
        )
        fix = (
            f"look at {stall.owner}: is it alive, busy, or waiting itself? log.txt in the run has what children wrote."
        )
        self.now(Alarm("G1", "stall", "note", self._step, f"{stall}.", why, fix))
