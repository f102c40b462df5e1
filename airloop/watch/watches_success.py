"""Reward without success: what the reward pays for is not what the environment's users want.

These need to know which metric is success (airloop/success.py) and say nothing of runs that do not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from airloop.lab.intervals import student_share
from airloop.success import METRIC, NAME
from airloop.watch.alarms import Sign, Step, watch
from airloop.watch.payers import payer_between

# Windows of steps that are compared: a collapse within ten steps shows in the shortest, a slow decline in the longest.
WINDOWS = (5, 10, 20)
# One-sided, of Welch's t over groups. It is asked again in every step and for six pairs of windows: with this, and
# patience 3, fewer than 1 in 100 healthy runs of 200 steps would hear of it (tests/watch/test_success_alarms.py).
CHANCE = 1e-4
# Smaller falls are no news, however certain: five points, and a fifth of what there was.
FALL, FALL_SHARE = 0.05, 0.2
# The reward "does not fall" if it is not even one standard error lower.
HOLDS = -1.0

Windows = tuple[Sequence[Step], Sequence[Step]]


@watch("E10", patience=3)
def success_falls_reward_does_not(step: Step, before: Sequence[Step]) -> Sign | None:
    steps = [one for one in (*before, step) if one.get("group_sizes")]
    if step.get(METRIC) is None or not steps:
        return None
    for early, late in _windows(steps):
        was, now = group_means(early, "successes"), group_means(late, "successes")
        if _fell(was, now) and _holds(group_means(early, "rewards"), group_means(late, "rewards")):
            return _falls((early, late), was, now)
    return None


def _windows(steps: Sequence[Step]) -> Iterator[Windows]:
    """The last few steps against the first ones, and against those just before them."""
    for width in WINDOWS:
        if len(steps) >= 2 * width:
            late = steps[-width:]
            yield steps[:width], late
            yield steps[-2 * width : -width], late


def group_means(steps: Sequence[Step], name: str) -> list[float]:
    """`rewards` or `successes` of each group: its episodes are of one task, so they are not independent."""
    found = []
    for step in steps:
        at = 0
        for size in step["group_sizes"]:
            known = [v for v in step[name][at : at + size] if v is not None]
            at += size
            if known:
                found.append(statistics.fmean(known))
    return found


def _fell(was: Sequence[float], now: Sequence[float]) -> bool:
    if len(was) < 2 or len(now) < 2:
        return False
    first, last = statistics.fmean(was), statistics.fmean(now)
    if first - last < max(FALL, FALL_SHARE * first):
        return False
    t, freedom = welch(was, now)
    return student_share(t, freedom) < CHANCE


def _holds(was: Sequence[float], now: Sequence[float]) -> bool:
    return welch(was, now)[0] > HOLDS


def welch(was: Sequence[float], now: Sequence[float]) -> tuple[float, int]:
    """Welch's t of the second's mean less the first's, and its degrees of freedom, rounded down."""
    means = [statistics.fmean(side) for side in (was, now)]
    difference = means[1] - means[0]
    # (statistics.variance is exact, and far too slow to be asked for in every step)
    a, b = (
        math.fsum((value - mean) ** 2 for value in side) / (len(side) - 1) / len(side)
        for side, mean in zip((was, now), means, strict=True)
    )
    if a + b == 0:
        return (math.copysign(math.inf, difference) if difference else 0.0), len(was) + len(now) - 2
    freedom = (a + b) ** 2 / (a**2 / (len(was) - 1) + b**2 / (len(now) - 1))
    return difference / math.sqrt(a + b), max(1, int(freedom))


def _falls(windows: Windows, was: Sequence[float], now: Sequence[float]) -> Sign:
    early, late = windows
    name = late[-1].get(NAME) or METRIC
    rewards = (statistics.fmean(group_means(side, "rewards")) for side in (early, late))
    seen = (
        f"{name} fell from {statistics.fmean(was):.0%} ({_span(early)}) to {statistics.fmean(now):.0%} "
        f"({_span(late)}), and the reward did not ({' to '.join(f'{r:.3g}' for r in rewards)})."
    )
    if found := payer_between(early, late):
        payer, line = found
        why = f"Another component pays for it: {payer}. What is learned is {payer.name}, not {name}."
        return Sign(seen, why, f"{line}; go on from a checkpoint before the fall.")
    why = f"The reward pays for something else than {name}."
    return Sign(seen, why, f"look at what the reward consists of, and pay for {name}; read a few of the best episodes.")


def _span(steps: Sequence[Step]) -> str:
    return f"steps {steps[0]['step'] + 1} to {steps[-1]['step'] + 1}"


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
    if success < SELDOM:
        for name in ("idle", "one_answer"):
            found[name] = _share(early, name), _share(late, name)
    if success <= NEVER:
        like = steps[-1].get("like") or {}
        for name, row in like.items():
            found[name] = row["first"], row["last"]
    return {name: (a, b) for name, (a, b) in found.items() if b >= ALIKE and b - a >= LEARNED}


def _share(steps: Sequence[Step], name: str) -> float:
    values = [one["metrics"].get("idle") if name == "idle" else (one.get(name) or {}).get("share") for one in steps]
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else 0.0


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
        "nothing earns, and a component that costs it (mlgym and tune: rewards = { …, idle = 1.0 }) changes that.",
    )
