"""How the learning rate falls over a run. Warming up is the learner's: it counts updates, not the run's steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

# What is left of lr - min_lr, by the share of the falling steps that are done.
SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + math.cos(math.pi * done)) / 2,
}


def scheduled_lr(
    schedule: str,
    lr: float,
    step: int,
    steps: int,
    *,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    min_lr: float | None = None,
) -> float:
    """The rate of `step` (from 0) of `steps`. It falls over the last `decay_steps`, by default over all after the
    warm-up; the first of them has the whole rate, and the last is still above `min_lr`, so no step is for nothing.

    >>> [scheduled_lr("linear", 1e-4, step, 4) for step in range(4)]
    [0.0001, 7.5e-05, 5e-05, 2.5e-05]
    """
    first = max(warmup_steps, steps - decay_steps if decay_steps is not None else 0)
    if step <= first:
        return lr
    least = min_lr or 0.0
    return least + (lr - least) * SCHEDULES[schedule](min(1.0, (step - first) / (steps - first)))
