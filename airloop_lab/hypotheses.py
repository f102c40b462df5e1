"""Hypotheses by name or file, and as a person reads them. What a file holds: hypothesis_file.py."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop_lab.hypothesis import Hypothesis, make_hypothesis
from airloop_lab.hypothesis_checks import check_hypothesis
from airloop_lab.hypothesis_file import WHOLE, Rule, flat, line, lists, read_written

HYPOTHESES = Path(__file__).resolve().parent / "configs" / "lab"
NAMED = 2  # keys that a line of the list has room for


def find_hypothesis(name: str) -> Path:
    """A file, or the name of one that comes with air."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known_names = {p.stem: p for p in sorted(HYPOTHESES.glob("*.toml"))}
    if (stem := name.removeprefix("lab/")) in known_names:
        return known_names[stem]
    close = difflib.get_close_matches(path.stem, known_names, 1, 0.5)
    known = f"did you mean {close[0]!r}?" if close else "`air lab list` shows those that come with air."
    raise AirError(f"There is no hypothesis {name!r}: no file, and none of that name.", known)


def parse_hypothesis(path: Path) -> Hypothesis:
    """As it is written: no config of its runs is looked at."""
    return make_hypothesis(path.stem, read_written(path), path.resolve().parent)


def read_hypothesis(path: Path) -> Hypothesis:
    """Refuses what could not be decided or changes more than one thing."""
    hypothesis = parse_hypothesis(path)
    check_hypothesis(hypothesis)
    return hypothesis


# --- showing ----------------------------------------------------------------------------------------------------------


def format_hypothesis(hypothesis: Hypothesis) -> str:
    w = hypothesis.written
    base = hypothesis.config(hypothesis.variants[0])
    lines = [f"{hypothesis.name}: {w.claim}", *([f"  {w.why}"] if w.why else []), ""]
    lines.append(f"  config    {w.config}, {base.max_steps} steps, {base.model.name}")
    lines += [f"  both      {line(key, value)}" for key, value in flat(w.both).items() if key != "max_steps"]
    lines += _factors(hypothesis)
    lines.append(f"  rule      {rule_text(w.rule, len(hypothesis.changed), w.exploratory)}")
    runs = len(w.seeds) * len(hypothesis.variants)
    named = f"{'seed' if len(w.seeds) == 1 else 'seeds'} {' '.join(map(str, w.seeds))}"
    lines.append(f"  runs      {runs}: {named} of each side, paired by seed")
    lines.append(f"  budget    {w.budget.minutes:g} minutes, {w.budget.steps} steps")
    return "\n".join(lines)


def _factors(hypothesis: Hypothesis) -> list[str]:
    w = hypothesis.written
    if w.grid is not None:
        lines = [f"  grid      {line(key, values)}" for key, values in lists(w.grid).items()]
        lines.append(f"            in every combination; the base is {hypothesis.base.text}")
    else:
        lines = [f"  {'vary' if w.vary is not None else 'change':8s}  {v.text}" for v in hypothesis.changed]
    for name, table in w.sets.items():
        parts = ", ".join(line(key, value) for key, value in flat(table).items())
        lines.append(f'  {WHOLE}    "{name}": {parts}')
    return lines


def rule_text(rule: Rule, lines: int = 1, exploratory: bool = False) -> str:
    what = f"changed less base in {rule.metric!r} of held-out tasks"
    control = ""
    if rule.base_gain:
        control = f" Undecided unless the base itself gains {rule.base_gain:g} or more, its whole interval."
    m = rule.margin
    match rule.prediction:
        case None if exploratory:
            return f"exploratory: ranked by {what}; no verdict is given, whatever comes out."
        case None:
            among = f", corrected for {lines} comparisons (Holm)" if lines > 1 else ""
            return f"ranked by {what}, each with its interval{among}.{control}"
        case "same":
            inside = f"within ±{m:g}"
            return f"supported if {what} is {inside}, its whole interval; rejected if that is outside.{control}"
        case "higher":
            bound, side, other = m, "above", "below"
        case "lower":
            bound, side, other = -m, "below", "above"
    return f"supported if {what} is {side} {bound:+g}, its whole interval; rejected if that is {other}.{control}"


def as_json(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "name": hypothesis.name,
        **hypothesis.written.model_dump(),
        "kind": "sweep" if hypothesis.is_sweep else "hypothesis",
        "variants": [{"name": v.name, "text": v.text} for v in hypothesis.variants],
        "rule_text": rule_text(hypothesis.written.rule, len(hypothesis.changed), hypothesis.written.exploratory),
    }


def format_list(found: Sequence[Hypothesis]) -> str:
    width = max((len(h.name) for h in found), default=0)
    lines = []
    for h in found:
        what = _kind(h) if h.is_sweep else h.changed[0].text.partition(":")[0]
        runs = len(h.written.seeds) * len(h.variants)
        lines.append(f"{h.name:{width}s}  {h.written.claim}")
        lines.append(f"{'':{width}s}  {what}; {runs} runs, at most {h.written.budget.minutes:g} minutes")
    return "\n".join(lines)


def _kind(hypothesis: Hypothesis) -> str:
    w, kind = hypothesis.written, "exploratory " if hypothesis.written.exploratory else ""
    if w.grid is not None:
        return f"{kind}grid of {' × '.join(lists(w.grid))}, {len(hypothesis.variants)} cells"
    keys = lists(w.vary or {})
    named = ", ".join(keys) if len(keys) <= NAMED else f"{len(keys)} keys"
    return f"{kind}sweep: {len(hypothesis.changed)} variations of {named}"
