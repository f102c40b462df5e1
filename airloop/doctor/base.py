"""What a check is, what it finds, and which there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from airloop.doctor.refusals import NO_EVIDENCE
from airloop.plugins import plugins

if TYPE_CHECKING:
    from airloop.doctor.case import Case

# not judged: the evidence could not be had here, in time or at all. It is no failure, stops nothing, and says when it
# could be had.
Verdict = Literal["pass", "warn", "fail", "not judged"]
# fast: no model is loaded. probe: a few rollouts with the real model. proof: forward and backward passes.
Stage = Literal["fast", "probe", "proof"]
STAGES: tuple[Stage, ...] = ("fast", "probe", "proof")
FAMILIES = {
    "A": "configuration",
    "B": "model and tokenizer",
    "C": "memory and devices",
    "D": "environment, tools, sandbox",
    "E": "reward and learning signal",
    "F": "tokens, masks, optimiser",
    "G": "running",
    "H": "fleets, clusters, endpoints",
}
# Files of this package with checks, by family; read when the doctor is asked, not before.
FILES = (
    "config",
    "models",
    "memory",
    "environment",
    "replies",
    "signal",
    "tokens",
    "arrival",
    "proofs",
    "running",
    "servers",
)


@dataclass(frozen=True)
class Finding:
    """One check's answer. Unless it passes, it has all three parts: what was seen (with numbers), why that is a
    failure, and what to change, as a sentence; `lines` are the config keys that change, with their new values."""

    verdict: Verdict
    seen: str
    why: str = ""
    fix: str = ""
    lines: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()  # of this finding, where a check answers several; by default all of the check's
    detail: str = ""  # further evidence, shown in full with --verbose and in the JSON: tokens with their mask, say

    def __post_init__(self) -> None:
        if self.verdict != "pass" and not (self.seen and self.why and self.fix):
            raise ValueError("a finding that is no pass says what was seen, why, and what to change")


def passed(seen: str, detail: str = "") -> Finding:
    """All is well; `seen` says what was looked at, with numbers."""
    return Finding("pass", seen, detail=detail)


def not_judged(seen: str, fix: str) -> Finding:
    """The evidence could not be had here, which is no failure; `fix` says how it could."""
    return Finding("not judged", seen, NO_EVIDENCE, fix)


Answer = Finding | Iterable[Finding]


@dataclass(frozen=True)
class Check:
    """`ids` are lines of the failure catalogue, or other names for what no line covers."""

    name: str
    ids: tuple[str, ...]
    stage: Stage
    title: str  # what is right when it passes, in a few words
    run: Callable[[Case], Answer]

    @property
    def family(self) -> str:
        return FAMILIES.get(self.ids[0][0], "other")


_CHECKS: dict[str, Check] = {}


def check(*ids: str, stage: Stage, title: str) -> Callable[[Callable[[Case], Answer]], Callable[[Case], Answer]]:
    """Registers the function under its own name. `ids` are lines of the failure catalogue, or names of your own;
    `title` says in a few words what is right when it passes.

        @check("my-data", stage="fast", title="the data has no duplicates")
        def no_duplicates(case: Case) -> Finding:
            return passed("8,000 rows, all different")
    """

    def register(function: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
        _CHECKS[function.__name__] = Check(function.__name__, ids, stage, title, function)
        return function

    return register


def checks(only: Sequence[str] = ()) -> list[Check]:
    """All checks, or those that answer one of the ids (or have one of the names) in `only`; by stage, then family."""
    for name in FILES:
        importlib.import_module(f"airloop.doctor.checks.{name}")
    for point in plugins("checks").values():
        point.load()
    wanted = {name.upper() for name in only}
    found = [c for c in _CHECKS.values() if not wanted or wanted & {c.name.upper(), *(i.upper() for i in c.ids)}]
    return sorted(found, key=lambda c: (STAGES.index(c.stage), c.ids[0][0], c.ids))
