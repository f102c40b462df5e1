"""Runs checks on a case, stage by stage, with the time that each took. A check that raises is itself a finding."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airloop.doctor.base import STAGES, Check, Finding, Stage, Verdict, checks
from airloop.doctor.case import Case
from airloop.doctor.refusals import Broken, NotJudged
from airloop.errors import AirError
from airloop.events import Say
from airloop.own_code import own_place

# Why a sentence that `air train` refuses a config with is a failure here.
STOPS_TOO = "`air train` would stop here too"
WORST: tuple[Verdict, ...] = ("fail", "warn", "not judged", "pass")


@dataclass(frozen=True)
class Result:
    """What one check found. Without findings it was not done, for the reason in `not_done`."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float
    not_done: str = ""

    @property
    def verdict(self) -> Verdict | None:
        return next((v for v in WORST if any(f.verdict == v for f in self.findings)), None)


def examine(
    case: Case,
    stages: Sequence[Stage] = STAGES,
    only: Sequence[str] = (),
    watch: Say = lambda _: None,
) -> list[Result]:
    """The results of all checks of these stages, or of those that `only` names. After a stage with a failure the
    later ones are not begun: what they would see follows from it. `watch` is told of each as it begins."""
    chosen = [check for check in checks(only) if check.stage in stages]
    places = {check.name: f"check {i} of {len(chosen)}" for i, check in enumerate(chosen, 1)}

    answered = {id for check in chosen for id in check.ids}

    def run(check: Check) -> Told:
        watch(f"doctor, {places[check.name]}: {check.title}")
        return _run(check, case, answered)

    told: list[Told] = []
    for stage in stages:
        failed = next((result.check.title for result, _ in told if result.verdict == "fail"), "")
        for check in (check for check in chosen if check.stage == stage):
            reason = f"the failure of “{failed}” comes first"
            told.append((Result(check, (), 0.0, reason), None) if failed else run(check))
    return _said_once(told)


Told = tuple[Result, Broken | None]  # with what the check could not do without


def _run(check: Check, case: Case, answered: Collection[str]) -> Told:
    began, broken = time.perf_counter(), None
    try:
        answer = check.run(case)
        found = (answer,) if isinstance(answer, Finding) else tuple(answer)
        if not found:
            raise ValueError("it has found nothing, not even that all is well")
    except Broken as cause:
        # Where no check is asked that answers for the cause, it is said under what was asked.
        own = () if set(cause.ids) & set(answered) else check.ids
        found, broken = (_refused(cause, (*own, *cause.ids)),), cause
    except AirError as error:
        found = (_refused(error),)
    except Exception as error:
        found = (_defect(check, error),)
    return Result(check, found, time.perf_counter() - began), broken


def _refused(error: AirError, ids: tuple[str, ...] = ()) -> Finding:
    why = getattr(error, "why", STOPS_TOO)
    verdict: Verdict = "not judged" if isinstance(error, NotJudged) else "fail"
    return Finding(verdict, error.problem, why, error.fix or "what to change is in the sentence above", ids=ids)


def _defect(check: Check, error: Exception) -> Finding:
    if place := own_place(error):
        return Finding(
            "fail",
            f"{place}: {type(error).__name__}: {error}",
            f"{STOPS_TOO}, in code of your own",
            "mend the file",
            detail="".join(traceback.format_exception(error)),
        )
    return Finding(
        "fail",
        f"the check {check.name} itself failed: {type(error).__name__}: {error}",
        "what it looks for is therefore not known; this is a defect of the check, or of the environment it asked",
        "report it with the traceback (--verbose, --json); --only runs the other checks meanwhile",
        detail="".join(traceback.format_exception(error)),
    )


def _said_once(told: list[Told]) -> list[Result]:
    """A cause that stopped several checks is said by one of them: one that found it itself, one that has its ids, or
    else the first."""
    sentences = {f.seen: result.check.name for result, broken in told if broken is None for f in result.findings}
    speakers = {id(b): sentences[b.problem] for _, b in told if b is not None and b.problem in sentences}
    for own in (True, False):
        for result, broken in told:
            if broken is not None and (not own or set(broken.ids) & set(result.check.ids)):
                speakers.setdefault(id(broken), result.check.name)
    results = []
    for result, broken in told:
        speaker = speakers.get(id(broken), result.check.name)
        if speaker != result.check.name:
            lacks = "could not get" if isinstance(broken, NotJudged) else "found to be wrong"
            result = replace(result, findings=(), not_done=f"it needs what {speaker} {lacks}")
        results.append(result)
    return results
