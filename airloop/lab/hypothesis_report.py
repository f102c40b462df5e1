"""What came of a hypothesis: pairs, intervals, the verdict by the rule that was written before, and curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.lab.compare import Side, check_comparable, read_side
from airloop.lab.hypotheses import BASE, FEWEST_SEEDS, Variant, rule_text
from airloop.lab.hypothesis_runs import LOOKS, Lab, Member, looks_before, open_lab
from airloop.lab.hypothesis_worker import FAULT_FREE
from airloop.lab.rows import RowKey, value, value_names
from airloop.lab.verdicts import Decision, Difference, Task, decide, difference
from airloop.run import Run
from airloop.stats.intervals import Interval, student_mean
from airloop.stats.looks import Looks, level_after, percent
from airloop.watch.measured import is_share
from airloop.watch.sparkline import sparkline, squeezed

CURVE_WIDTH = 40


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

    @property
    def difference(self) -> Difference | None:
        found = {pair.seed: pair.by_task for pair in self.pairs}
        return difference(found, self.level, is_share(self.metric)) if found else None

    @property
    def interval(self) -> Interval | None:
        return self.difference.interval if self.difference else None

    @property
    def word(self) -> str:
        """For a line of a sweep."""
        found = self.difference
        if self.problems or found is None or found.interval.n < FEWEST_SEEDS:
            return "undecided"
        return found.too_few or replace(found.interval, n=found.over_rows.n).word


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
    def decidable(self) -> bool:
        """Whether what it shows could have been a finding: then whoever sees it has looked."""
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
    return report


def _compare(variant: Variant, members: Sequence[Member], lab: Lab, level: float) -> Compared:
    compared = Compared(variant, lab.hypothesis.written.rule.metric, level)
    at = {(m.variant.name, m.seed): m for m in members}
    for seed in lab.seeds:
        base, changed = at[BASE, seed], at[variant.name, seed]
        if not (base.finished and changed.finished):
            continue  # named among the unfinished
        try:
            compared.pairs.append(_pair(seed, base, changed, compared.metric))
        except AirError as error:
            compared.problems.append(f"seed {seed}: {error.problem}")
    return compared


def _pair(seed: int, base: Member, changed: Member, metric: str) -> Pair:
    a, b = (read_side(_last(member)) for member in (base, changed))
    check_comparable(a, b, common=False)
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


# --- showing ----------------------------------------------------------------------------------------------------------


def format_report(report: Report) -> str:
    lab, hypothesis = report.lab, report.lab.hypothesis
    members = lab.members()
    done = sum(member.finished for member in members)
    lines = [f"{hypothesis.name}: {hypothesis.written.claim}"]
    if not hypothesis.is_sweep:
        lines.append(f"  change  {hypothesis.changed[0].text}")
    lines.append(f"  rule    {rule_text(hypothesis.written.rule)}")
    lines.append(
        f"  runs    {done} of {len(members)} complete, seeds {' '.join(map(str, lab.seeds))}; "
        f"{lab.spent_s / 60:.1f} of {hypothesis.written.budget.minutes:g} minutes"
    )
    lines += [f"  note    {note}" for note in _notes(report)]
    lines.append("")
    if report.decision:
        lines += [f"{report.decision.verdict.upper()}: {report.decision.why}.", ""]
    lines += _ranking(report) if hypothesis.is_sweep else _pairs(report.compared[0], hypothesis.written.rule.metric)
    return "\n".join([*lines, "", *format_curves(report.curves)])


def _notes(report: Report) -> list[str]:
    notes = [] if report.decision else [f"undecided where it matters: {text}" for text in report.unfinished]
    notes += [f"{one.variant.name}, {text}" for one in report.compared for text in one.problems if not report.decision]
    written, run = ([*map(str, sorted(seeds))] for seeds in (report.lab.hypothesis.written.seeds, report.lab.seeds))
    if written != run:
        notes.append(f"the hypothesis was written for seeds {' '.join(written)}, and run with {' '.join(run)}")
    if len(report.lab.sessions) > 1:
        later = [seed for session in report.lab.sessions[1:] for seed in session["added"]]
        if later:
            notes.append(f"seeds {' '.join(map(str, later))} were added after the first runs")
    if seen := looks_before(report.lab):
        sets = ", ".join(f"seeds {' '.join(map(str, sorted(seeds)))}" for seeds in seen)
        notes.append(
            f"a verdict on {sets} had been seen when the others were added: intervals are of {percent(report.level)} "
            "instead of 95 %, so that all looks together support a wrong claim less than once in twenty"
        )
    versions = {session["air_version"] for session in report.lab.sessions if "air_version" in session}
    if len(versions) > 1:
        notes.append(f"the runs were made by different versions of air ({', '.join(sorted(versions))})")
    if lost := sum(pair.lost for one in report.compared for pair in one.pairs):
        notes.append(f"{lost} rows lost to infrastructure trouble were left out")
    for one in report.compared:
        if one.variant.fault and any(abs(p.own_word - p.changed) > 1e-9 for p in one.pairs):
            said = " ".join(f"{p.own_word:.3f}" for p in one.pairs)
            notes.append(f"with the fault on, the changed runs said of themselves: {said}")
    return notes


def _pairs(compared: Compared, metric: str) -> list[str]:
    if not compared.pairs:
        return ["no pair of runs is complete"]
    lines = [f"  {'held-out ' + metric:16s} {'base':>15s} {'changed':>15s}   changed − base"]
    for p in compared.pairs:
        base, changed = f"{p.base_before:.3f} → {p.base:.3f}", f"{p.changed_before:.3f} → {p.changed:.3f}"
        lines.append(f"  {f'seed {p.seed}':16s} {base:>15s} {changed:>15s}   {p.gain:+.3f}")
    found = compared.difference
    assert found is not None
    level, tasks = percent(compared.level), f"{found.over_rows.n} tasks, each a mean over seeds"
    lines.append(f"  {f'{len(compared.pairs)} seeds':48s}   {found.over_seeds.signed}   {level}, Student's t")
    lines.append(f"  {tasks:48s}   {found.over_rows.signed}   {level}, Student's t and exact")
    lines.append(f"  {'both doubts together, which decides':48s}   {found.interval.signed}")
    return lines


def ranked(report: Report) -> list[Compared]:
    """Best first; those without a complete pair last."""
    return sorted(report.compared, key=lambda one: (one.interval is None, -(one.interval.mean if one.interval else 0)))


def _ranking(report: Report) -> list[str]:
    width = max(len(one.variant.name) for one in report.compared)
    metric = report.lab.hypothesis.written.rule.metric
    mean = f"{report.base_after.mean:.3f}" if report.base_after else "–"
    gain = f", gained {report.base_gain.signed}" if report.base_gain else ""
    lines = [f"  {'held-out ' + metric:{width}s}   mean    less the base, paired [{percent(report.level)}]"]
    lines.append(f"  {'base':{width}s}  {mean:>6s}   the base{gain}")
    for one in ranked(report):
        if one.interval is None:
            lines.append(f"  {one.variant.name:{width}s}       –   no complete pair")
            continue
        own = statistics.fmean(pair.changed for pair in one.pairs)
        lines.append(f"  {one.variant.name:{width}s}  {own:6.3f}   {one.interval.signed}   {one.word}")
    lines.append(
        f"  Of {len(report.compared)} such lines, up to one in twenty differs by chance: confirm with a hypothesis."
    )
    return lines


def format_curves(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[str]:
    """Mean over seeds of the reward in training, all on one scale."""
    means = {name: mean_curve(seeds) for name, seeds in curves.items() if any(seeds)}
    known = [v for curve in means.values() for v in curve if math.isfinite(v)]
    if not known:
        return []
    low, high = min(known), max(known)
    width = max(len(name) for name in means)
    lines = [f"  reward in training, mean over seeds, from {low:.3f} (▁) to {high:.3f} (█)"]
    for name, curve in means.items():
        ends = f"{curve[0]:.3f} → {curve[-1]:.3f} in {len(curve)} steps"
        lines.append(f"  {name:{width}s}  {sparkline(squeezed(curve, CURVE_WIDTH), CURVE_WIDTH, (low, high))}  {ends}")
    return lines


def mean_curve(seeds: Sequence[Sequence[float]]) -> list[float]:
    """Where a seed's run ended early, the mean is over those that go on."""
    longest = max((len(curve) for curve in seeds), default=0)
    columns = [[c[i] for c in seeds if i < len(c) and math.isfinite(c[i])] for i in range(longest)]
    return [statistics.fmean(column) if column else math.nan for column in columns]


def as_json(report: Report) -> dict[str, Any]:
    lab = report.lab
    return {
        "name": lab.hypothesis.name,
        "claim": lab.hypothesis.written.claim,
        "rule": rule_text(lab.hypothesis.written.rule),
        "verdict": report.decision.verdict if report.decision else None,
        "why": report.decision.why if report.decision else None,
        "seeds": lab.seeds,
        "minutes": lab.spent_s / 60,
        "unfinished": report.unfinished,
        "notes": _notes(report),
        "level": report.level,
        "base": report.base_after and report.base_after.as_json("n"),
        "base_gain": report.base_gain and report.base_gain.as_json("n"),
        "variants": [_variant_json(one) for one in ranked(report)],
        "curves": {name: [_finite(c) for c in seeds] for name, seeds in report.curves.items()},
        "runs": [
            {"seed": m.seed, "variant": m.variant.name, "run": m.path and m.path.name, "finished": m.finished}
            for m in lab.members()
        ],
    }


def _finite(curve: Sequence[float]) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in curve]


def _variant_json(one: Compared) -> dict[str, Any]:
    found = one.difference
    return {
        "name": one.variant.name,
        "text": one.variant.text,
        "word": one.word,
        "over_seeds": found and found.over_seeds.as_json("n"),
        "over_rows": found and found.over_rows.as_json("n"),
        "difference": found and found.interval.as_json("n"),
        "problems": one.problems,
        "pairs": [
            {
                "seed": p.seed,
                "base": p.base,
                "changed": p.changed,
                "base_before": p.base_before,
                "changed_before": p.changed_before,
                "own_word": p.own_word,
                "lost": p.lost,
            }
            for p in one.pairs
        ],
    }


def find_labs(path: Path) -> list[Path]:
    """The directory itself, or those in it."""
    return [path] if (path / "lab.json").is_file() else sorted(p.parent for p in path.glob("*/lab.json"))


def format_verdicts(reports: Sequence[Report]) -> str:
    """Several hypotheses, a line each."""
    width = max(len(report.lab.path.name) for report in reports)
    lines = []
    for report in reports:
        name, claim, first = report.lab.path.name, report.lab.hypothesis.written.claim, report.compared[0].interval
        shown = "" if report.decision is None or first is None else first.signed
        verdict = report.decision.verdict if report.decision else "sweep"
        lines.append(f"{name:{width}s}  {verdict:10s}  {shown:26s}  {claim}")
    return "\n".join(lines)
