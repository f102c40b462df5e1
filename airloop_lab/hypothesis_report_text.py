"""What came of a hypothesis, as a person reads it and as JSON."""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.stats.holm import Judged
from airloop.stats.looks import percent
from airloop.text.sparkline import sparkline, squeezed
from airloop_lab.confirming import worth_asking
from airloop_lab.hypotheses import rule_text
from airloop_lab.hypothesis_file import lists, shown
from airloop_lab.hypothesis_report import Compared, Report, judged_together, ranked
from airloop_lab.hypothesis_runs import looks_before

CURVE_WIDTH = 40


def format_report(report: Report) -> str:
    lab, hypothesis = report.lab, report.lab.hypothesis
    members = lab.members()
    done = sum(member.finished for member in members)
    lines = [f"{hypothesis.name}: {hypothesis.written.claim}"]
    if not hypothesis.is_sweep:
        lines.append(f"  change  {hypothesis.changed[0].text}")
    lines.append(f"  rule    {_rule(report)}")
    lines.append(
        f"  runs    {done} of {len(members)} complete, seeds {' '.join(map(str, lab.seeds))}; "
        f"{lab.spent_s / 60:.1f} of {hypothesis.written.budget.minutes:g} minutes"
    )
    lines += [f"  note    {note}" for note in _notes(report)]
    lines.append("")
    if report.decision:
        lines += [f"{report.decision.verdict.upper()}: {report.decision.why}.", ""]
    if report.exploratory:
        few = f"{len(lab.seeds)} {'seed' if len(lab.seeds) == 1 else 'seeds'}"
        lines += [f"NO VERDICT: exploratory, {few}: what stands first may do so by chance.", ""]
    lines += _ranking(report) if hypothesis.is_sweep else _pairs(report.compared[0], hypothesis.written.rule.metric)
    return "\n".join([*lines, "", *format_curves(report.curves)])


def _rule(report: Report) -> str:
    w = report.lab.hypothesis.written
    return rule_text(w.rule, len(report.compared), w.exploratory)


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


def _ranking(report: Report) -> list[str]:
    width = max(len(one.variant.name) for one in report.compared)
    metric = report.lab.hypothesis.written.rule.metric
    mean = f"{report.base_after.mean:.3f}" if report.base_after else "–"
    gain = f", gained {report.base_gain.signed}" if report.base_gain else ""
    how = "less the base" if report.exploratory else "less the base, paired [at the level of the line]"
    lines = [f"  {'held-out ' + metric:{width}s}   mean    {how}"]
    base = "the base" + (f": {report.lab.hypothesis.base.text}" if report.lab.hypothesis.base.settings else "")
    lines.append(f"  {'base':{width}s}  {mean:>6s}   {base}{gain}")
    lines += [f"  {one.variant.name:{width}s}  {_line(one, report.exploratory)}" for one in ranked(report)]
    return [*lines, *_matrix(report), *_conclusion(report)]


def _line(one: Compared, exploratory: bool) -> str:
    if one.interval is None:
        return "     –   no complete pair"
    own = f"{statistics.fmean(pair.changed for pair in one.pairs):6.3f}"
    if one.judged is None or exploratory:
        return f"{own}   {round(one.interval.mean, 3) + 0.0:+.3f}"
    level = f"{percent(one.judged.level):>7s}"
    return f"{own}   {one.interval.signed:26s} {level}   p {_p(one.judged.adjusted)}   {one.word}"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<.001"


def _matrix(report: Report) -> list[str]:
    """A grid's means: the first key down, the second across."""
    table = report.lab.hypothesis.written.grid
    if table is None:
        return []
    (down, rows), (across, columns) = lists(table).items()
    means = {one.variant.name: statistics.fmean(p.changed for p in one.pairs) for one in report.compared if one.pairs}
    cells = []
    for row, column in itertools.product(rows, columns):
        found = next(v for v in report.lab.hypothesis.variants if [*v.settings.values()] == [row, column])
        mean = (report.base_after and report.base_after.mean) if found.name == "base" else means.get(found.name)
        cells.append("–" if mean is None else f"{mean:.3f}")
    heads = [shown(column) for column in columns]
    wide, first = max(6, *map(len, heads)), max(len(shown(row)) for row in rows)
    lines = ["", f"  mean by {down} (down) and {across} (across)"]
    lines.append(f"  {'':{first}s}  {'  '.join(f'{head:>{wide}s}' for head in heads)}")
    for place, row in enumerate(rows):
        part = cells[place * len(columns) : (place + 1) * len(columns)]
        lines.append(f"  {shown(row):{first}s}  {'  '.join(f'{cell:>{wide}s}' for cell in part)}")
    return lines


def _conclusion(report: Report) -> list[str]:
    if report.exploratory:
        return []
    return [
        f"  Corrected for {len(report.compared)} comparisons (Holm): all lines together show a difference that is none "
        "in at most one of twenty such sweeps."
    ]


def format_next(report: Report, file: Path) -> str:
    """What to do with what a sweep has shown."""
    asked = worth_asking(report)
    name = f" ({asked.variant.name})" if asked else ""
    why = "To decide" if report.exploratory else "To learn how large it is"
    return f"{why}, ask about one line{name} on other seeds: air lab run {shlex.quote(str(file))}"


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
        "rule": _rule(report),
        "verdict": report.decision.verdict if report.decision else None,
        "why": report.decision.why if report.decision else None,
        "exploratory": report.exploratory,
        "seeds": lab.seeds,
        "minutes": lab.spent_s / 60,
        "unfinished": report.unfinished,
        "notes": _notes(report),
        "level": report.level,
        "base": report.base_after and report.base_after.as_json("n"),
        "base_gain": report.base_gain and report.base_gain.as_json("n"),
        "variants": [_variant_json(one, report) for one in ranked(report)],
        "curves": {name: [_finite(c) for c in seeds] for name, seeds in report.curves.items()},
        "runs": [
            {"seed": m.seed, "variant": m.variant.name, "run": m.path and m.path.name, "finished": m.finished}
            for m in lab.members()
        ],
    }


def _finite(curve: Sequence[float]) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in curve]


def _variant_json(one: Compared, report: Report) -> dict[str, Any]:
    found = one.difference
    return {
        "name": one.variant.name,
        "text": one.variant.text,
        "word": None if report.exploratory else one.word,
        "holm": _holm_json(one.judged),
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


def _holm_json(judged: Judged | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    return {"p": judged.p, "p_adjusted": judged.adjusted, "level": judged.level, "found": judged.found}


# --- several hypotheses -----------------------------------------------------------------------------------------------


def format_verdicts(reports: Sequence[Report]) -> str:
    """A line each, each judged among all of them."""
    judged = judged_together(reports)
    width = max(len(report.lab.path.name) for report in reports)
    lines = []
    for report in reports:
        name, claim, first = report.lab.path.name, report.lab.hypothesis.written.claim, report.compared[0]
        own = judged.get(report.lab.path)
        found = first.at(own.level) if own else None
        p = f"p {_p(own.adjusted)}" if own else ""
        told = found.interval.signed if found else ""
        lines.append(f"{name:{width}s}  {_verdict(report, own):11s}  {told:26s}  {p:7s}  {claim}")
    if len(judged) > 1:
        lines += ["", f"Corrected for {len(judged)} hypotheses (Holm): p is that of each among all of them."]
    for report in reports:
        if report.decision and (alone := report.decision.verdict) != _verdict(report, judged[report.lab.path]):
            lines.append(f"{report.lab.path.name} alone is {alone}; asked beside {len(judged) - 1} others it is not.")
    return "\n".join(lines)


def _verdict(report: Report, judged: Judged | None) -> str:
    if report.decision is None or judged is None:
        return "exploratory" if report.exploratory else "sweep"
    return report.decision.verdict if judged.found else "undecided"


def verdicts_json(reports: Sequence[Report]) -> list[dict[str, Any]]:
    judged = judged_together(reports)
    return [
        {
            **as_json(report),
            "among": len(judged),
            "holm": _holm_json(judged.get(report.lab.path)),
            "verdict_among": _verdict(report, own) if (own := judged.get(report.lab.path)) else None,
        }
        for report in reports
    ]
