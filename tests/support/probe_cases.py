"""Cases for the doctor's probes and proofs: a tiny model in real environments, and what a check says of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from airloop.config import load_config
from airloop.doctor import probe
from airloop.doctor.base import Finding, checks
from airloop.doctor.case import Case
from airloop.envs.arith import ArithEnv, ArithSession
from airloop.types import Action, Observation, Score

ARITH = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "seq_len": "128",
    "orchestrator.batch_size": "8",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "6",
}
TUNE = {
    **ARITH,
    "orchestrator.env.0.id": "tune",
    "orchestrator.env.0.args.datasets": '["concrete", "storms"]',
    "orchestrator.env.0.args.workers": "1",  # each imports scikit-learn
    "seq_len": "1500",
    "orchestrator.sampling.max_tokens": "12",
}


# A probe that has no time for its other rounds only warns: what tests expect of it must not depend on the machine.
SHIPPED = probe.ROUND_S


@contextmanager
def case_of(flags: dict[str, str], **changes: str) -> Iterator[Case]:
    """Keys may be given as keyword arguments with "__" for the dot."""
    given = {**flags, **{key.replace("__", "."): value for key, value in changes.items()}}
    with pytest.MonkeyPatch.context() as patch:
        if probe.ROUND_S is SHIPPED:  # the test has no clock of its own
            patch.setattr(probe._Sampling, "_in_time", lambda self: True)
        with Case(load_config([word for key, value in given.items() for word in (f"--{key}", value)])) as case:
            yield case


def ask(case: Case, name: str) -> list[Finding]:
    """What the check of this name finds."""
    (found,) = checks([name])
    answer: Any = found.run(case)
    return [answer] if isinstance(answer, Finding) else list(answer)


def ids_of(name: str, finding: Finding) -> tuple[str, ...]:
    (found,) = checks([name])
    return finding.ids or found.ids


def graded(
    monkeypatch: pytest.MonkeyPatch,
    grade: Callable[[str], Mapping[str, float]],
    weights: Mapping[str, float] | None = None,
    done: Callable[[str], bool] = lambda text: True,
) -> None:
    """From now on `arith` gives these rewards for a reply's text, and ends as `done` says."""

    async def act(self: ArithSession, action: Action) -> Observation:
        self.said = action.text  # type: ignore[attr-defined]
        return Observation("", done=done(action.text))

    async def finish(self: ArithSession) -> Score:
        return Score(grade(self.said))  # type: ignore[attr-defined]

    monkeypatch.setattr(ArithSession, "act", act)
    monkeypatch.setattr(ArithSession, "finish", finish)
    monkeypatch.setattr(ArithEnv, "reward_weights", dict(weights or {"correct": 1.0}))


def chance(text: str) -> float:
    """A number in [0, 1) that differs from reply to reply, also of a model that knows nothing."""
    return zlib.crc32(text.encode()) % 1000 / 1000
