"""The picture of a report: curves of every seed, and the differences that decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airloop.stats.looks import percent
from airloop_lab.hypothesis_report import Report, ranked
from airloop_lab.hypothesis_report_text import mean_curve

GREY, BLUE, RED = "#7f8c99", "#2f6fb0", "#c0392b"


def plot_report(report: Report, path: Path) -> Path:
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # not pyplot, whose backend is the caller's

    sweep = report.lab.hypothesis.is_sweep
    height = 4.0 + (0.22 * len(report.compared) if sweep else 0.0)
    figure = Figure(figsize=(13 if sweep else 10, height))
    left, right = figure.subplots(1, 2, width_ratios=[3, 3 if sweep else 2])
    _curves(left, report, colormaps["tab20"])
    (_forest if sweep else _differences)(right, report)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    verdict = f": {report.decision.verdict}" if report.decision else ""
    figure.suptitle(f"{report.lab.hypothesis.name}{verdict}\n{report.lab.hypothesis.written.claim}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return path


def _curves(axis: Any, report: Report, colours: Any) -> None:
    """Thin: a seed; thick: the mean over seeds."""
    sweep = report.lab.hypothesis.is_sweep
    for place, (name, seeds) in enumerate(report.curves.items()):
        colour = (GREY if place == 0 else RED) if not sweep else "black" if place == 0 else colours((place - 1) % 20)
        if not sweep:
            for curve in seeds:
                axis.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.25, linewidth=0.8)
        mean = mean_curve(seeds)
        axis.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2 if place == 0 else 1.5, label=name)
    axis.set(xlabel="step", title="reward in training, mean over seeds")
    axis.legend(fontsize=6 if sweep else 9)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _differences(axis: Any, report: Report) -> None:
    """Every seed's difference, the interval that decides, and where the rule draws its line."""
    (compared,) = report.compared
    rule = report.lab.hypothesis.written.rule
    axis.scatter([0.0] * len(compared.pairs), [p.gain for p in compared.pairs], color=RED, zorder=3)
    if found := compared.interval:
        low, high = max(found.low, -10.0), min(found.high, 10.0)
        axis.errorbar(
            [0.3], [found.mean], yerr=[[found.mean - low], [high - found.mean]], fmt="o", color=BLUE, capsize=6
        )
    lines = {"higher": (rule.margin,), "lower": (-rule.margin,), "same": (-rule.margin, rule.margin)}
    for line in lines[rule.prediction or "same"]:
        axis.axhline(line, color="black", linestyle="--", linewidth=1)
    axis.axhline(0.0, color=GREY, linewidth=1)
    axis.set_xticks([0, 0.3], ["seeds", percent(report.level)])
    axis.set(title=f"held-out {rule.metric}: changed − base", xlim=(-0.2, 0.5))


def _forest(axis: Any, report: Report) -> None:
    """Best on top, each with its interval."""
    lines = [one for one in ranked(report) if one.interval is not None]
    for place, one in enumerate(reversed(lines)):
        found = one.interval
        assert found is not None
        low, high = max(found.low, -10.0), min(found.high, 10.0)
        colour = BLUE if one.word == "higher" else RED if one.word == "lower" else GREY
        error = None if report.exploratory else [[found.mean - low], [high - found.mean]]
        axis.errorbar([found.mean], [place], xerr=error, fmt="o", color=colour, capsize=4)
    axis.axvline(0.0, color="black", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(lines)), [one.variant.name for one in reversed(lines)], fontsize=7)
    how = "exploratory: no verdict" if report.exploratory else "at Holm's levels"
    axis.set(title=f"held-out {report.lab.hypothesis.written.rule.metric}, less the base, {how}")
