"""Reward without success: what the reward pays for is not what the environment's users want.

These need to know which metric is success (airloop/success.py) and say nothing of runs that do not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.stats.student import student_share
from airloop.stats.welch import Moments, welch
from airloop.success import METRIC, NAME
from airloop.watch.alarms.reward_sources import reward_source_between
from airloop.watch.alarms.rules import Sign, Step, watch

# Windows of steps that are compared: a collapse within ten steps shows in the shortest, a slow decline in the longest.
WINDOWS = (5, 10, 20)
# One-sided, of Welch's t over groups. It is asked again in every step and for six pairs of windows: with this, and
# patience 3, fewer than 1 in 100 healthy runs hear of it even where the reward has nothing to do with success: 3 of 640
# simulated runs of 200 steps, and tests/watch/test_success_alarms.py simulates shorter ones.
CHANCE = 1e-4
# Smaller falls are no news, however certain: five points, and a fifth of what there was.
FALL, FALL_SHARE = 0.05, 0.2
# The reward "does not fall" if it is not even one standard error lower.
HOLDS = -1.0


def moments(step: Step, name: str) -> Moments:
    """Of the means of a step's groups: episodes of a group are of one task, so they are not independent. `name`:
    rewards or successes."""
    means, at = [], 0
    for size in step["group_sizes"]:
        known = [v for v in step[name][at : at + size] if v is not None]
        at += size
        if known:
            means.append(math.fsum(known) / len(known))
    return Moments.of(means)


@dataclass(frozen=True)
class Window:
    first: int  # step, as people count
    last: int
    lines: Sequence[Step]
    success: Moments
    reward: Moments

    def __str__(self) -> str:
        return f"steps {self.first} to {self.last}"


@watch("E10", patience=3)
def success_falls_reward_does_not(step: Step, before: Sequence[Step]) -> Sign | None:
    return next((_falls(early, late) for early, late, holds in _fallen(step, before) if holds), None)


@watch("E7", patience=3)
def policy_gets_worse(step: Step, before: Sequence[Step]) -> Sign | None:
    """Both fall: no component pays for it, the updates themselves do harm."""
    return next((_worse(early, late) for early, late, holds in _fallen(step, before) if not holds), None)


def _fallen(step: Step, before: Sequence[Step]) -> Iterator[tuple[Window, Window, bool]]:
    """Windows between which success fell, and whether the reward held."""
    steps = [one for one in (*before, step) if one.get("group_sizes")]
    if step.get(METRIC) is not None and steps:
        for early, late in _windows(steps):
            if _fell(early.success, late.success):
                yield early, late, welch(early.reward, late.reward)[0] > HOLDS


def _worse(early: Window, late: Window) -> Sign:
    return Sign(
        f"{late.lines[-1].get(NAME) or METRIC} fell from {early.success.mean:.0%} ({early}) to {late.success.mean:.0%} "
        f"({late}), and the reward with it ({early.reward.mean:.3g} to {late.reward.mean:.3g}).",
        "Nothing pays for this: the updates are too large, or follow a signal that is mostly noise; or the tasks of "
        "late are harder than those of the beginning.",
        "lower trainer.optim.lr or take more episodes a step; go on from a checkpoint before the fall.",
    )


def _windows(steps: Sequence[Step]) -> Iterator[tuple[Window, Window]]:
    """The last few steps against the first ones, and against those just before them."""
    most = max(WINDOWS)
    near = {i: (moments(steps[i], "successes"), moments(steps[i], "rewards")) for i in _near(len(steps), most)}

    def window(start: int, end: int) -> Window:
        parts = [near[i] for i in range(start, end)]
        success, reward = (sum((part[which] for part in parts), Moments()) for which in (0, 1))
        return Window(steps[start]["step"] + 1, steps[end - 1]["step"] + 1, steps[start:end], success, reward)

    for width in WINDOWS:
        if (count := len(steps)) >= 2 * width:
            late = window(count - width, count)
            yield window(0, width), late
            yield window(count - 2 * width, count - width), late


def _near(count: int, most: int) -> Iterator[int]:
    """The first steps and the last ones: no window has others."""
    return (i for i in range(count) if i < most or i >= count - 2 * most)


def _fell(was: Moments, now: Moments) -> bool:
    if was.n < 2 or now.n < 2 or was.mean - now.mean < max(FALL, FALL_SHARE * was.mean):
        return False
    return student_share(*welch(was, now)) < CHANCE


def _falls(early: Window, late: Window) -> Sign:
    name = late.lines[-1].get(NAME) or METRIC
    seen = (
        f"{name} fell from {early.success.mean:.0%} ({early}) to {late.success.mean:.0%} ({late}), and the reward did "
        f"not ({early.reward.mean:.3g} to {late.reward.mean:.3g})."
    )
    if found := reward_source_between(early.lines, late.lines):
        source, line = found
        why = f"Another component pays for it: {source}. What is learned is {source.name}, not {name}."
        return Sign(seen, why, f"{line}; go on from a checkpoint before the fall.")
    why = f"The reward pays for something else than {name}."
    return Sign(seen, why, f"look at what the reward consists of, and pay for {name}; read a few of the best episodes.")


# --- doing nothing ------------------------------------------------------------------------------------------------

# Nearly all episodes of a step end alike, by what the policy has learned: at the start it was a fifth fewer.
ALIKE, LEARNED = 0.8, 0.2
# Steps whose shares are pooled at either end, and after which it is asked at all.
EDGE = 5
# Success that is none: one lucky episode in fifty.
NEVER = 0.02
# One answer to every task: above this it is a good answer.
SELDOM = 0.2
SCRIPTS = {
    "noop": "the environment's own script that does nothing",
    "cheat": "the environment's own script that tries to cheat",
}


@watch("E11", patience=3)
def as_good_as_doing_nothing(step: Step, before: Sequence[Step]) -> Sign | None:
    """The policy has come to do what needs no policy, and success has not come with it."""
    steps = [one for one in (*before, step) if one.get("rewards")]
    if step.get(METRIC) is None or len(steps) < 2 * EDGE:
        return None
    success = statistics.fmean([one[METRIC] for one in steps[-EDGE:] if one.get(METRIC) is not None])
    shares = _shares(steps, success)
    if not shares:
        return None
    name, (first, last) = max(shares.items(), key=lambda item: item[1][1])
    return _nothing(steps, name, first, last, success)


def _shares(steps: Sequence[Step], success: float) -> dict[str, tuple[float, float]]:
    """Of each way of doing nothing, the share of episodes that took it: in the first steps, in the last ones."""
    found: dict[str, tuple[float, float]] = {}
    early, late = steps[:EDGE], steps[-EDGE:]
    if success <= NEVER:
        like = steps[-1].get("like") or {}
        for name, row in like.items():
            found[name] = row["first"], row["last"]
    if success < SELDOM:
        for name in ("idle", "one_answer"):
            first, last = _share(early, name), _share(late, name)
            if first is not None and last is not None:
                found[name] = first, last
    return {name: (a, b) for name, (a, b) in found.items() if b >= ALIKE and b - a >= LEARNED}


def _share(steps: Sequence[Step], name: str) -> float | None:
    """None where it is unknown: lines of older versions have none."""
    values = [one["metrics"].get("idle") if name == "idle" else (one.get(name) or {}).get("share") for one in steps]
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _nothing(steps: Sequence[Step], name: str, first: float, last: float, success: float) -> Sign:
    late: Any = steps[-1]
    wanted = late.get(NAME) or METRIC
    count = round(last * len(late["rewards"]))
    of = f"{count} of {len(late['rewards'])} episodes"
    answer = (late.get("one_answer") or {}).get("text", "")
    told = {
        "idle": f"The policy submits the unchanged starter file, or one that is worth the same: {of} do.",
        "one_answer": f"The policy says the same whatever it is asked: {of} reply {answer!r}.",
    }
    seen = told.get(name) or f"{of} end with the score of {name}: {SCRIPTS.get(name, 'a script')}."
    rewards = [statistics.fmean(one["rewards"]) for one in (steps[0], late)]
    return Sign(
        f"{seen} In the first {EDGE} steps it was {first:.0%}, in the last {last:.0%}; {wanted} is {success:.0%}, the "
        f"reward went from {rewards[0]:.3g} to {rewards[1]:.3g}.",
        "The reward pays more for doing nothing than for attempts that fail, so nothing is what was learned.",
        "begin with a [warmstart] or easier tasks, so that some attempts succeed; `air tasks audit` shows what doing "
        "nothing earns, and a component that costs it (where there is one: rewards = { …, idle = 1.0 }) changes that.",
    )
