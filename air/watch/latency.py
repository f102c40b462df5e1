"""Where a step's time goes. Its parts are means over the step's episodes, so that they add up to the wall clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Protocol

from air.types import Group, Trajectory


class Phases(Protocol):
    """What an engine counts: seconds of its steps that computed prompts, and of those that only decoded."""

    @property
    def phases(self) -> tuple[float, float]: ...


class StepClock:
    """Started with a step; told when its episodes are there; asked for the split when its update is published."""

    def __init__(self, engine: Phases) -> None:
        self._engine = engine
        self._epoch, self._began = time.time(), time.perf_counter()
        self._busy = engine.phases
        self._sampled = self._began

    def sampled(self) -> None:
        self._sampled = time.perf_counter()
        prefill, decode = self._engine.phases
        self._busy = (prefill - self._busy[0], decode - self._busy[1])

    def times(self, groups: Sequence[Group]) -> dict[str, float]:
        training = time.perf_counter() - self._sampled
        # Episodes that a killed run has left took no time of this step.
        fresh = [t for group in groups for t in group.trajectories if t.started >= self._epoch]
        return step_times(fresh, self._busy, self._sampled - self._began, training)


def step_times(
    episodes: Sequence[Trajectory], engine: tuple[float, float], sampling: float, training: float
) -> dict[str, float]:
    """Seconds of a step: `sampling` and `training` by the clock, and how an episode of this step spent the first.

    `engine`: seconds its steps with prompts and its steps without took meanwhile; the time an episode spends in the
    model is divided in that proportion. `waiting`: before an episode could start, and after it for the step's last.
    """
    parts = dict.fromkeys(("queue", "model", "tool", "episode"), 0.0)
    if episodes:
        turns = [[turn.times for turn in t.turns] for t in episodes]
        parts = {
            "queue": statistics.fmean(sum(x.queue for x in own) for own in turns),
            "model": statistics.fmean(sum(x.model for x in own) for own in turns),
            "tool": statistics.fmean(sum(x.tool for x in own) for own in turns),
            "episode": statistics.fmean(t.seconds for t in episodes),
        }
    prompts = engine[0] / sum(engine) if sum(engine) > 0 else 0.0
    between = parts["episode"] - parts["queue"] - parts["model"] - parts["tool"]  # opening, parsing, grading
    return {
        "sampling": sampling,
        "training": training,
        "prefill": parts["model"] * prompts,
        "decode": parts["model"] * (1 - prompts),
        "tool": parts["tool"],
        "queue": parts["queue"],
        "waiting": sampling - parts["episode"],
        "other": between,
    }
