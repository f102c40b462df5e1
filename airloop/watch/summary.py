"""The end of a run: what was learned, in words, as a text plot and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airloop.lab.rows import passes, per_task, row_key, value
from airloop.run import Run
from airloop.stats.intervals import Interval, difference, mean_interval
from airloop.types import Trajectory
from airloop.watch.families import by_family, families, first_and_last, table
from airloop.watch.sparkline import squeezed

PLOT = 66  # columns of a plot in text: with its labels it fits a terminal of 80


def paired(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """The episodes both sides have: same task, same seed."""
    later = {(t.task.env, t.task.id, t.seed): t for t in after}
    pairs = [(t, later[key]) for t in before if (key := (t.task.env, t.task.id, t.seed)) in later]
    return [a for a, _ in pairs], [b for _, b in pairs]


def summary(run: Run, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> str:
    steps = run.metrics("train")
    lines = [f"run {run.name}: {len(steps)} steps, {run.path}"]
    if refused := run.refused():
        numbers = ", ".join(dict.fromkeys(str(line["step"] + 1) for line in refused))
        lines.append(f"refused and sampled anew: step {numbers} (refused.jsonl says why; nothing of it counts)")
    if steps:
        first, last = edges(run)
        lines.append(f"reward while training   first 3 steps {first}   last 3 steps {last}")
        lines.append(text_plot([m["reward"] for m in steps if m["reward"] is not None]))
        if len({name for m in steps for name in m.get("task", {})}) > 1:
            lines.append("reward of each task while training (episodes, shares):")
            lines.append(table(first_and_last(steps)))
    one, two = paired(before, after)
    if one:
        lines.append(f"held-out tasks, {len(one)} episodes, same tasks and seeds before and after (95 % intervals):")
        for name in ["reward", *(["improved"] if "improved" in one[0].metrics else [])]:
            lines.append("  " + _difference(name, _values(one, name), _values(two, name)))
        if len(families(one)) > 1:
            lines.append(table({"before": by_family(one), "after": by_family(two)}))
    return "\n".join(lines)


def edges(run: Run) -> tuple[Interval, Interval]:
    """Mean reward of the first and of the last three steps, over episodes."""
    steps = [m["rewards"] for m in run.metrics("train") if m["rewards"]]
    return (
        mean_interval([r for step in steps[:3] for r in step]),
        mean_interval([r for step in steps[-3:] for r in step]),
    )


def _values(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    """One number per task: episodes of one task are not independent of each other."""
    return per_task((row_key(t), v) for t in trajectories if (v := value(t, name)) is not None)


def _difference(name: str, before: list[float], after: list[float]) -> str:
    share = passes(name, [*before, *after])
    gain = difference(after, before, share=share)
    verdict = "" if gain.word in ("higher", "lower") else f"  ({gain.word})"
    one, two = (mean_interval(side, share=share) for side in (before, after))
    return f"{name:10s} {one} → {two}   difference {gain.signed}{verdict}"


def text_plot(values: Sequence[float], height: int = 8) -> str:
    """A plot of one value per step that any terminal can show; of many steps, each sign is the mean of a few."""
    values = [v for v in squeezed(values, PLOT) if v is not None]
    wide = 3 if 3 * len(values) <= PLOT else 1
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    rows = [round((v - low) / span * (height - 1)) for v in values]
    lines = []
    for level in range(height - 1, -1, -1):
        label = f"{low + span * level / (height - 1):7.2f}" if level in (0, height - 1) else " " * 7
        lines.append(f"{label} │" + "".join("●".center(wide) if r == level else " " * wide for r in rows))
    lines.append(" " * 8 + "└" + "─" * wide * len(values) + " step")
    return "\n".join(lines)


def plot(run: Run, before: Sequence[Trajectory], after: Sequence[Trajectory], path: Path) -> Path:
    """Reward and, where the environment measures it, the share that beats the baseline; then held-out tasks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [m for m in run.metrics("train") if m["rewards"]]
    one, two = paired(before, after)
    shares = bool(steps) and "improved" in steps[0]["metrics"]
    widths = [3, 3, 2] if shares else [3, 2]
    figure, axes = plt.subplots(1, len(widths), figsize=(4 + 3.5 * (len(widths) - 1), 4), width_ratios=widths)
    x = [m["step"] + 1 for m in steps]
    bands = [mean_interval(m["rewards"]) for m in steps]
    axes[0].fill_between(x, [b.low for b in bands], [b.high for b in bands], alpha=0.2)
    axes[0].plot(x, [b.mean for b in bands], marker="o", markersize=4)
    axes[0].set(xlabel="step", title="reward in training, 95 % interval")
    if shares:
        axes[1].plot(x, [m["metrics"]["improved"] for m in steps], marker="o", markersize=4)
        axes[1].set(xlabel="step", title="share that beats the baseline", ylim=(-0.03, 1.03))
    name = "improved" if shares else "reward"
    for place, (side, colour) in enumerate(((one, "#9aa5b1"), (two, "#2f6fb0"))):
        if side:
            values = _values(side, name)
            held_out = mean_interval(values, share=passes(name, values))
            error = [[held_out.mean - held_out.low], [held_out.high - held_out.mean]] if held_out.bounded else None
            axes[-1].bar(place, held_out.mean, yerr=error, capsize=6, color=colour)
    axes[-1].set_xticks([0, 1], ["before", "after"])
    axes[-1].set(title=f"held-out tasks: {name}")
    for axis in axes:
        axis.grid(alpha=0.3)
    for axis in axes[:-1]:
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(run.name)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
