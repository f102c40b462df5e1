"""The two halves of the hidden rows of our own tables: `validate` shows the score on one, the other is the score.

So `validate` is no oracle on what is paid for: rows that were flipped until it said more change nothing in the end.
A checkout's evaluation is as its authors wrote it and has one score; there gradings are counted instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from airloop_envs.mlgym.measure import recorded
from airloop_envs.mlgym.spec import TaskSpec


def has_halves(spec: TaskSpec) -> bool:
    return spec.builtin and spec.entry_point == "CSVSubmissionTasks"


def asks_for_labels(spec: TaskSpec) -> bool:
    """Whether every grading tells something of the very labels that are scored."""
    return not has_halves(spec) and spec.entry_point in ("CSVSubmissionTasks", "ModelSubmissionTasks")


def shown_baseline(spec: TaskSpec) -> Mapping[str, float] | None:
    """The baseline on the half that `validate` shows; None where there is but one baseline."""
    if not has_halves(spec):
        return None
    validate = recorded(spec.key, spec.variant).validate
    return validate.baseline if validate is not None else None
