"""The hypothesis that a sweep's report says to ask next: one of its lines, on seeds that were not seen, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.files import write_text
from airloop.stats.intervals import FEWEST
from airloop_lab.hypothesis import Hypothesis
from airloop_lab.hypothesis_checks import LOSS
from airloop_lab.hypothesis_file import FEWEST_SEEDS, WHOLE, flat, line
from airloop_lab.hypothesis_report import Compared, Report, ranked

SET = "changed"


def worth_asking(report: Report) -> Compared | None:
    """Of a sweep the clearest finding; of one that only looks, what differs most."""
    if report.exploratory:
        complete = [one for one in ranked(report) if one.pairs]
        return max(complete, key=lambda one: abs(one.interval.mean) if one.interval else 0.0, default=None)
    found = [one for one in report.compared if one.judged is not None and one.judged.found]
    return min(found, key=lambda one: one.judged.p if one.judged else 1.0, default=None)


def write_confirming(report: Report) -> Path | None:
    """Into the lab's directory; None where there is nothing to ask, or the config that it was run with is gone."""
    one = worth_asking(report) if report.lab.hypothesis.is_sweep else None
    if one is None:
        return None
    path = report.lab.path / f"{report.lab.hypothesis.name}-confirm.toml"  # whose name its runs will have
    try:
        write_text(path, confirming_text(report, one))
    except (AirError, OSError):
        return None
    return path


def confirming_text(report: Report, one: Compared) -> str:
    hypothesis = report.lab.hypothesis
    w, variant, base = hypothesis.written, one.variant, hypothesis.base
    higher = one.interval is not None and one.interval.mean > 0
    more = "more" if higher else "less"
    first = max(report.lab.seeds) + 1
    seeds = [*range(first, first + max(FEWEST_SEEDS, len(report.lab.seeds)))]
    steps = sum(hypothesis.config(side).max_steps for side in (base, variant)) * len(seeds)
    lines = [
        f"# What the sweep {hypothesis.name!r} found, asked on seeds that it had not.",
        line("claim", f"With {variant.text} it learns {more}."),
        line("config", str(hypothesis.config_file(base))),
        line("seeds", seeds),
        "",
        "[both]",
        *(line(key, value) for key, value in _both(hypothesis).items()),
        "",
        *_change(hypothesis, one),
        "",
        "[rule]",
        line("metric", w.rule.metric),
        line("prediction", "higher" if higher else "lower"),
        "",
        "[budget]",
        line("minutes", w.budget.minutes),
        line("steps", max(steps, 1)),
    ]
    return "\n".join(lines) + "\n"


def _both(hypothesis: Hypothesis) -> dict[str, Any]:
    """What only looks may do so on fewer tasks than can decide."""
    tasks = hypothesis.config(hypothesis.base).orchestrator.eval.num_examples
    enough = {} if tasks >= FEWEST else {"orchestrator.eval.num_examples": FEWEST}
    return {**hypothesis.settings(hypothesis.base), **enough}


def _change(hypothesis: Hypothesis, one: Compared) -> list[str]:
    """One key as it is; several, and a loss with what comes with it, as one thing with a name."""
    settings, chosen = one.variant.settings, flat(hypothesis.written.sets.get(one.variant.whole, {}))
    if len(settings) == 1 and not {WHOLE, LOSS} & {*settings}:
        return ["[change]", *(line(key, value) for key, value in settings.items())]
    own = {key: value for key, value in settings.items() if key != WHOLE}
    if WHOLE in settings:
        chosen[WHOLE] = str(hypothesis.config_file(one.variant))
    table = (line(key, value) for key, value in {**chosen, **own}.items())
    return ["[change]", line(WHOLE, SET), "", f"[sets.{SET}]", *table]
