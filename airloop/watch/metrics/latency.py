"""Where a step's time goes. Its parts are means over the step's episodes, so that they add up to the wall clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airloop.types import Group, Trajectory

# The parts of a step: what is waited for, and what would make it shorter.
PARTS: dict[str, tuple[str, str]] = {
    "queue": (
        "places in the engine's batch",
        "raise inference.max_batch (and inference.kv_tokens), or lower orchestrator.max_concurrent.",
    ),
    "prefill": (
        "prompts to be computed",
        "keep what the agent sees stable, so that prefixes are found in the cache (metrics.cached_share); shorter "
        "observations; a larger inference.kv_tokens.",
    ),
    "decode": (
        "replies to be sampled",
        "a larger batch (orchestrator.batch_size, inference.max_batch) uses the same passes for more episodes; a "
        "smaller orchestrator.sampling.max_tokens; a smaller model or a GPU.",
    ),
    "tool": (
        "the environment's answers to actions",
        "run tools on this machine and warm; more workers (orchestrator.workers_per_env); more episodes at once "
        "(orchestrator.max_concurrent), so that the model works while tools do.",
    ),
    "opening": (
        "sessions to be opened",
        "keep more sandboxes ready (the environment's standby), or lower the images' size.",
    ),
    "scoring": ("episodes to be graded", "a quicker evaluation in the environment, or more of them at once."),
    "waiting": (
        "the slowest episode of the step, or for a place among those that run",
        "raise orchestrator.max_concurrent; cap the slowest by orchestrator.episode_timeout_s or the environment's "
        "max_turns.",
    ),
    "other": ("what lies between turns: parsing, tokenising, the event loop", "fewer episodes at once per core."),
    "training": (
        "the update",
        "raise trainer.token_budget if memory allows; trainer.model.ac costs a third of the time and can be left out "
        "where it fits.",
    ),
    "sync": ("the new weights to be served", "with the embedded engine this is a moment; look at the ranks' network."),
}
# Where time should go: to the model and the update.
HEALTHY = ("prefill", "decode", "training")


class Phases(Protocol):
    """What an engine counts: seconds of its steps that computed prompts, and of those that only decoded."""

    @property
    def phases(self) -> tuple[float, float]: ...


class StepClock:
    """Started with a step; told when its episodes are there and when its update is made; asked for the split when
    that is published."""

    def __init__(self, engine: Phases) -> None:
        self._engine = engine
        self._began = time.perf_counter()
        self._busy = engine.phases
        self._sampled = self._trained = self._began

    def sampled(self) -> None:
        self._sampled = time.perf_counter()
        prefill, decode = self._engine.phases
        self._busy = (prefill - self._busy[0], decode - self._busy[1])

    def trained(self) -> None:
        self._trained = time.perf_counter()

    def times(self, groups: Sequence[Group], left: Container[str] = ()) -> dict[str, float]:
        """`left`: episodes, by their ids, that a killed run has left: they took no time of this step."""
        sync = time.perf_counter() - self._trained
        fresh = [t for group in groups for t in group.trajectories if t.id not in left]
        split = step_times(fresh, self._busy, self._sampled - self._began, self._trained - self._sampled)
        return split | {"sync": sync}


def step_times(
    episodes: Sequence[Trajectory], engine: tuple[float, float], sampling: float, training: float
) -> dict[str, float]:
    """Seconds of a step: `sampling` and `training` by the clock, and how an episode of this step spent the first.

    `engine`: seconds its steps with prompts and its steps without took meanwhile; the time an episode spends in the
    model is divided in that proportion. `waiting`: before an episode could start, and after it for the step's last.
    `turn_…` are means over turns: what one reply and one answer take.
    """
    turns = [turn.times for t in episodes for turn in t.turns]
    count = max(1, len(episodes))
    queue, model, tool = (sum(getattr(x, n) for x in turns) / count for n in ("queue", "model", "tool"))
    opening = sum(t.metrics.get("seconds_opening", 0.0) for t in episodes) / count
    scoring = sum(t.metrics.get("seconds_scoring", 0.0) for t in episodes) / count
    whole = statistics.fmean(t.seconds for t in episodes) if episodes else 0.0
    prompts = engine[0] / sum(engine) if sum(engine) > 0 else 0.0
    per_turn = count / max(1, len(turns))
    return {
        "sampling": sampling,
        "training": training,
        "prefill": model * prompts,
        "decode": model * (1 - prompts),
        "tool": tool,
        "queue": queue,
        "opening": opening,
        "scoring": scoring,
        "waiting": sampling - whole,
        "other": whole - queue - model - tool - opening - scoring,
        "turn_queue": queue * per_turn,
        "turn_model": model * per_turn,
        "turn_tool": tool * per_turn,
    }


@dataclass(frozen=True)
class Largest:
    """The part of a step that took longest."""

    part: str
    seconds: float
    total: float
    split: str  # all parts that count, in words

    @property
    def share(self) -> float:
        return self.seconds / self.total

    @property
    def means(self) -> str:
        return PARTS[self.part][0]

    @property
    def advice(self) -> str:
        return PARTS[self.part][1]

    def __str__(self) -> str:
        named = f"the largest part of a step ({self.share:.0%}) goes to {self.part}: {self.means}"
        return f"{named}. {self.split} To shorten it: {self.advice}"


def largest(times: Mapping[str, float]) -> Largest | None:
    """None where a step's time was not split."""
    found = {name: times[name] for name in PARTS if name in times}
    total = sum(found.values())
    if "tool" not in found or total <= 0:
        return None
    part = max(found, key=lambda name: found[name])
    shares = sorted(((value / total, name) for name, value in found.items()), reverse=True)
    split = ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.05)
    return Largest(part, found[part], total, f"Split: {split}.")
