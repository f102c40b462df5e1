"""What came of a hypothesis: pairs, intervals, the verdict by the rule that was written before, and curves.

The lines of a sweep are judged together, and so are the hypotheses of a directory: by Holm's correction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airloop.errors import AirError
from airloop.eval.compare import Side, check_comparable, read_side
from airloop.runs.run import Run
from airloop.stats.holm import Judged, holm, p_value
from airloop.stats.intervals import LEVEL, Interval, student_mean
from airloop.stats.looks import Looks, level_after
from airloop.watch.metrics.measured import is_share
from airloop.watch.metrics.rows import RowKey, value, value_names
from airloop_lab.factors import BASE, Variant
from airloop_lab.hypothesis_checks import excuses
from airloop_lab.hypothesis_file import FEWEST_SEEDS
from airloop_lab.hypothesis_runs import LOOKS, Lab, Member, looks_before, open_lab
from airloop_lab.hypothesis_worker import FAULT_FREE
from airloop_lab.verdicts import Decision, Difference, Task, decide, difference

NO_EVIDENCE = "no evidence of a difference"


@dataclass(frozen=True)
class Pair:
    """Base and changed on one seed: held-out means, and each task's difference."""

    seed: int
    base: float
    changed: float
    base_before: float
    changed_before: float
    by_task: Mapping[Task, float]
    own_word: float  # of the changed run's own last evaluation, where a fault was on
    lost: int  # rows that infrastructure trouble left without a score

    @property
    def gain(self) -> float:
        return self.changed - self.base


@dataclass
class Compared:
    """One variant against the base, over the seeds that have both."""

    variant: Variant
    metric: str
    level: float  # of its intervals
    pairs: list[Pair] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # seeds that cannot count, and why
    judged: Judged | None = None  # among the lines of a sweep; none where it is exploratory

    def at(self, level: float) -> Difference | None:
        found = {pair.seed: pair.by_task for pair in self.pairs}
        return difference(found, level, is_share(self.metric)) if found else None

    @property
    def difference(self) -> Difference | None:
        return self.at(self.judged.level if self.judged else self.level)

    @property
    def interval(self) -> Interval | None:
        return self.difference.interval if self.difference else None

    @property
    def p(self) -> float:
        """That a difference such as this comes by chance; 1 where nothing can be told."""

        def differs(level: float) -> bool:
            found = self.at(level)
            if self.problems or found is None or found.interval.n < FEWEST_SEEDS or found.too_few:
                return False
            return found.interval.low > 0 or found.interval.high < 0

        return p_value(differs)

    @property
    def word(self) -> str:
        """For a line of a sweep."""
        found = self.difference
        if self.problems or found is None or found.interval.n < FEWEST_SEEDS:
            return "undecided"
        if self.judged is None or not self.judged.found:
            return found.too_few or NO_EVIDENCE
        return "higher" if found.interval.mean > 0 else "lower"


@dataclass
class Report:
    lab: Lab
    compared: list[Compared]
    unfinished: list[str]
    curves: dict[str, list[list[float]]]  # by variant, of each seed the reward of each step
    base_after: Interval | None
    base_gain: Interval | None
    level: float  # 95 %, unless seeds were added after a verdict had been seen
    decision: Decision | None = None  # of a sweep there is none

    @property
    def exploratory(self) -> bool:
        return self.lab.hypothesis.written.exploratory

    @property
    def decidable(self) -> bool:
        """Whether what it shows could have been a finding: then whoever sees it has looked."""
        if self.exploratory:
            return False
        counted = [one.difference for one in self.compared if not one.problems]
        return not self.unfinished and any(d and d.interval.n >= FEWEST_SEEDS and not d.too_few for d in counted)


def make_report(path: Path) -> Report:
    lab = open_lab(path)
    members, level = lab.members(), level_after(len(looks_before(lab)))
    compared = [_compare(variant, members, lab, level) for variant in lab.hypothesis.changed]
    unfinished = [f"{m.label}: {m.trouble or 'has not begun'}" for m in members if not m.finished]
    curves = {v.name: [_curve(m) for m in members if m.variant == v and m.path] for v in lab.hypothesis.variants}
    seeds = {pair.seed: pair for one in compared for pair in one.pairs}
    bases = [seeds[seed] for seed in sorted(seeds)]
    report = Report(
        lab,
        compared,
        unfinished,
        curves,
        student_mean([p.base for p in bases], level) if bases else None,
        student_mean([p.base - p.base_before for p in bases], level) if bases else None,
        level,
    )
    if not lab.hypothesis.is_sweep:
        report.decision = _decision(report, compared[0])
    elif not report.exploratory:
        for one, judged in zip(compared, holm([one.p for one in compared], level), strict=True):
            one.judged = judged
    return report


def _compare(variant: Variant, members: Sequence[Member], lab: Lab, level: float) -> Compared:
    compared = Compared(variant, lab.hypothesis.written.rule.metric, level)
    at = {(m.variant.name, m.seed): m for m in members}
    for seed in lab.seeds:
        base, changed = at[BASE, seed], at[variant.name, seed]
        if not (base.finished and changed.finished):
            continue  # named among the unfinished
        try:
            compared.pairs.append(_pair(seed, base, changed, compared.metric, excuses(lab.hypothesis, variant)))
        except AirError as error:
            compared.problems.append(f"seed {seed}: {error.problem}")
    return compared


def _pair(seed: int, base: Member, changed: Member, metric: str, excused: Callable[[str], bool]) -> Pair:
    a, b = (read_side(_last(member)) for member in (base, changed))
    check_comparable(a, b, common=False, excused=excused)
    rows = sorted(key for key in a.planned if key in a.scored and key in b.scored)
    if not rows:
        raise AirError("no row was scored on both sides.", "look at the runs' evaluations.")
    one, two = _values(a, metric, rows), _values(b, metric, rows)
    by_task: dict[Task, list[float]] = {}
    for (env, task, _), x, y in zip(rows, one, two, strict=True):
        by_task.setdefault((env, task), []).append(y - x)
    return Pair(
        seed,
        base=statistics.fmean(one),
        changed=statistics.fmean(two),
        base_before=_mean(f"{base.path}:before", metric),
        changed_before=_mean(f"{changed.path}:before", metric),
        by_task={task: statistics.fmean(values) for task, values in by_task.items()},
        own_word=_mean(f"{changed.path}:after", metric),
        lost=len(a.planned) - len(rows),
    )


def _mean(evaluation: str, metric: str) -> float:
    return statistics.fmean(_values(read_side(evaluation), metric))


def _last(member: Member) -> str:
    """Which evaluation says what the trained weights are worth."""
    return f"{member.path}/{FAULT_FREE}" if member.variant.fault else f"{member.path}:after"


def _values(side: Side, metric: str, rows: Sequence[RowKey] | None = None) -> list[float]:
    found = [value(side.scored[key], metric) for key in (sorted(side.scored) if rows is None else rows)]
    known = [v for v in found if v is not None]
    if len(known) < len(found) or not known:
        names = ", ".join(value_names(side.scored.values()))
        raise AirError(f"{side.label} has no {metric!r} in every row.", f"rule.metric is one of {names}.")
    return known


def _curve(member: Member) -> list[float]:
    assert member.path is not None
    steps = Run.open(member.path).metrics("train")
    return [math.nan if m["reward"] is None else float(m["reward"]) for m in steps]


def ranked(report: Report) -> list[Compared]:
    """Best first; those without a complete pair last."""
    return sorted(report.compared, key=lambda one: (one.interval is None, -(one.interval.mean if one.interval else 0)))


def _decision(report: Report, compared: Compared) -> Decision:
    """Nothing is decided on what is left of a plan: the runs that failed may be those that matter."""
    if troubles := [*report.unfinished, *compared.problems]:
        return Decision("undecided", f"not every run of the plan counts ({'; '.join(troubles)})")
    found = compared.difference
    assert found is not None
    return decide(report.lab.hypothesis.written.rule, found, report.base_gain)


def note_look(report: Report) -> None:
    """After it was shown: what it could decide has been seen, and seeds that are added now are added knowing."""
    if report.decidable:
        Looks(report.lab.path / LOOKS).note(report.lab.seeds)


def judged_together(reports: Sequence[Report]) -> dict[Path, Judged]:
    """The hypotheses of a directory, each among all of them: whoever asks often enough is told yes by chance. Sweeps
    have their own correction."""
    asked = [report for report in reports if report.decision is not None]
    found = holm([_p(report) for report in asked])
    return {report.lab.path: judged for report, judged in zip(asked, found, strict=True)}


def _p(report: Report) -> float:
    """The smallest α at which its rule would still decide; stricter by what was looked at before."""
    (compared,) = report.compared
    if report.unfinished or compared.problems or not compared.pairs:
        return 1.0
    rule = report.lab.hypothesis.written.rule
    gains = [pair.base - pair.base_before for pair in compared.pairs]

    def decides(level: float) -> bool:
        found = compared.at(level)
        assert found is not None
        return decide(rule, found, student_mean(gains, level)).verdict != "undecided"

    return min(1.0, p_value(decides) * (1 - LEVEL) / (1 - report.level))


def find_labs(path: Path) -> list[Path]:
    """The directory itself, or those in it."""
    return [path] if (path / "lab.json").is_file() else sorted(p.parent for p in path.glob("*/lab.json"))
