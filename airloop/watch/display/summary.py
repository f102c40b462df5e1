"""The end of a run: what was learned, in words, as a text plot and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.runs.run import Run
from airloop.stats.intervals import Interval, difference, mean_interval
from airloop.success import KNOWN, METRIC, NAME, common_name, step_success
from airloop.text.sparkline import squeezed
from airloop.types import Trajectory
from airloop.watch.alarms.reward_sources import corrected, find_reward_source, successes_of, weights_of
from airloop.watch.metrics.families import by_family, families, first_and_last, table
from airloop.watch.metrics.rows import passes, per_task, row_key, value

PLOT = 66  # columns of a plot in text: with its labels it fits a terminal of 80
ABOVE = 1.0  # a title's place over its axes: to find one where no tick is, matplotlib would measure every tick


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
        shown = common_name(steps)
        if shown and (found := edges(steps, "successes")):
            lines.append(f"{shown} while training   first 3 steps {found[0]}   last 3 steps {found[1]}")
        first, last = edges(steps, "rewards") or (None, None)
        lines.append(f"reward while training   first 3 steps {first}   last 3 steps {last}")
        if curve := _curve(steps):
            lines += [f"{shown or 'reward'} by step:", text_plot(curve)]
        if len({name for m in steps for name in m.get("task", {})}) > 1:
            lines.append("each task while training (episodes, shares):")
            lines.append(table(first_and_last(steps), shown))
    one, two = paired(before, after)
    if one:
        lines.append(f"held-out tasks, {len(one)} episodes, same tasks and seeds before and after (95 % intervals):")
        lines += [*_base(run, one), *_held_out(run, one, two)]
        if len(families(one)) > 1:
            lines.append(table({"before": by_family(one), "after": by_family(two)}, common_name(steps)))
    return "\n".join(lines)


def _base(run: Run, before: Sequence[Trajectory]) -> list[str]:
    """Of a run with a supervised start that has asked the model itself too."""
    if (found := base_gain(run, before)) is None:
        return []
    lines = [f"  {found.name:10s} {found.before} of the model itself; `before` is behind its supervised start"]
    return [*lines, *([f"  warning: {worse}"] if (worse := worse_start(found)) else [])]


def base_gain(run: Run, before: Sequence[Trajectory]) -> Gain | None:
    """What a supervised start has brought, on held-out tasks. None where the model itself was not asked, or not to the
    end: what ends first is not like the rest."""
    if not any(line["name"] == "base" for line in run.metrics("eval")):
        return None
    base, same = paired(run.evaluation("base"), before)
    return gains(run, base, same)[0] if base else None


def worse_start(found: Gain) -> str:
    """Said where a supervised start has taken away from what the model could do; empty where it has not."""
    if found.gain.word != "lower":
        return ""
    return (
        f"the supervised start made the model worse: {found.name} {found.before} → {found.after}, difference "
        f"{found.gain.signed}. What RL wins back of it is no gain. Demonstrations that are right and in the model's "
        "own words (warmstart.min_reward, a run's best episodes by warmstart.source), fewer steps, or no [warmstart]"
    )


def edges(steps: Sequence[Mapping[str, Any]], name: str) -> tuple[Interval, Interval] | None:
    """Mean of `rewards` or `successes` in the first and in the last three steps that have them, over episodes."""
    known = [row for m in steps if (row := [v for v in m.get(name, ()) if v is not None])]
    if not known:
        return None
    return (
        mean_interval([v for row in known[:3] for v in row]),
        mean_interval([v for row in known[-3:] for v in row]),
    )


def _curve(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of success where there is one, else of the reward."""
    successes = [found[1] for m in steps if (found := step_success(m))]
    return successes or [m["reward"] for m in steps if m["reward"] is not None]


def _success(run: Run, trajectories: Sequence[Trajectory]) -> tuple[str, str] | None:
    """Its name as it is shown and as episodes have it; None where there is none."""
    if all(METRIC in t.metrics for t in trajectories):
        said = next((m[NAME] for m in reversed(run.metrics()) if m.get(NAME)), METRIC)
        return said, METRIC
    found = next((name for name in KNOWN if all(name in t.metrics for t in trajectories)), None)
    return (found, found) if found else None


@dataclass(frozen=True)
class Gain:
    """A quantity on held-out tasks. `name`: as it is shown; `metric`: as episodes have it."""

    name: str
    metric: str
    before: Interval
    after: Interval
    gain: Interval  # paired: the same tasks on both sides

    def __str__(self) -> str:
        verdict = "" if self.gain.word in ("higher", "lower") else f"  ({self.gain.word})"
        return f"{self.name:10s} {self.before} → {self.after}   difference {self.gain.signed}{verdict}"


def gains(run: Run, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[Gain]:
    """Of paired episodes: success, where there is one, then the reward."""
    success = _success(run, [*before, *after])
    found = []
    for shown, name in [*([success] if success else []), ("reward", "reward")]:
        one, two = _values(before, name), _values(after, name)
        share = passes(name, [*one, *two])
        was, now = (mean_interval(side, share=share) for side in (one, two))
        found.append(Gain(shown, name, was, now, difference(two, one, share=share)))
    return found


def _held_out(run: Run, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[str]:
    """Success and reward before and after, and a word where they go different ways (E10)."""
    *success, reward = gains(run, before, after)
    lines = [f"  {found}" for found in (*success, reward)]
    if success and success[0].gain.word == "lower" and reward.gain.word != "lower":
        shown = (success[0].name, success[0].metric)
        lines += _reward_without_success(run, shown, before, after, reward.gain.word == "higher")
    return lines


def _reward_without_success(
    run: Run, success: tuple[str, str], before: Sequence[Trajectory], after: Sequence[Trajectory], rose: bool
) -> list[str]:
    shown, name = success
    was, now = (sum(_values(side, name)) / len(_values(side, name)) for side in (before, after))
    line = f"  ! the reward {'rose' if rose else 'shows no difference'}, but {shown} fell {was:.0%} → {now:.0%}"
    steps = run.metrics("train")
    rewards, successes = weights_of(steps), successes_of(steps)
    source = find_reward_source(_paid(before, rewards), _paid(after, rewards), {shown, *successes.values()})
    if source is None:
        return [f"{line}: the reward pays for something else"]
    return [
        f"{line}: {source.name} pays for it, {source.early:.3g} → {source.late:.3g} of the reward",
        f"    pay for {shown}: {corrected(source, rewards, successes)}",
    ]


def _paid(trajectories: Sequence[Trajectory], rewards: Mapping[str, Mapping[str, float]]) -> dict[str, list[float]]:
    """What each whole-episode component adds to the reward of every episode."""
    names = sorted({name for t in trajectories for name in t.rewards})
    return {n: [rewards.get(t.task.env, {}).get(n, 0.0) * t.rewards.get(n, 0.0) for t in trajectories] for n in names}


def _values(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    """One number per task: episodes of one task are not independent of each other."""
    return per_task((row_key(t), v) for t in trajectories if (v := value(t, name)) is not None)


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
    """Success where the environment says what it is, and the reward; then held-out tasks."""
    from matplotlib.figure import Figure  # not pyplot, whose backend is the caller's: a notebook's, say

    steps = [m for m in run.metrics("train") if m["rewards"]]
    one, two = paired(before, after)
    shown = common_name(steps)
    widths = [3, 3, 2] if shown else [3, 2]
    wide = 4 + 3.5 * (len(widths) - 1)
    figure = Figure(figsize=(wide, 4))
    # Room for numbers of seven signs: to find what each needs, matplotlib would draw everything twice more.
    room = {"left": 0.65 / wide, "right": 1 - 0.15 / wide, "bottom": 0.13, "top": 0.83}
    axes = figure.subplots(1, len(widths), width_ratios=widths, gridspec_kw={**room, "wspace": 0.25})
    if shown:
        known = [(m["step"] + 1, found[1]) for m in steps if (found := step_success(m))]
        rows = [[v for v in m.get("successes", ()) if v is not None] for m in steps]
        bands = [mean_interval(row, share=True) for row in rows if row]
        if len(bands) == len(known):
            axes[0].fill_between([x for x, _ in known], [b.low for b in bands], [b.high for b in bands], alpha=0.2)
        axes[0].plot([x for x, _ in known], [y for _, y in known], marker="o", markersize=4)
        axes[0].set(xlabel="step", ylim=(-0.03, 1.03))
        axes[0].set_title(f"{shown} in training", y=ABOVE)
    x = [m["step"] + 1 for m in steps]
    bands = [mean_interval(m["rewards"]) for m in steps]
    axes[-2].fill_between(x, [b.low for b in bands], [b.high for b in bands], alpha=0.2)
    axes[-2].plot(x, [b.mean for b in bands], marker="o", markersize=4)
    axes[-2].set(xlabel="step")
    axes[-2].set_title("reward in training, 95 % interval", y=ABOVE)
    title, name = (_success(run, one) if one else None) or ("reward", "reward")
    for place, (side, colour) in enumerate(((one, "#9aa5b1"), (two, "#2f6fb0"))):
        if side:
            values = _values(side, name)
            held_out = mean_interval(values, share=passes(name, values))
            error = [[held_out.mean - held_out.low], [held_out.high - held_out.mean]] if held_out.bounded else None
            axes[-1].bar(place, held_out.mean, yerr=error, capsize=6, color=colour)
    axes[-1].set_xticks([0, 1], ["before", "after"])
    axes[-1].set_title(f"held-out tasks: {title}", y=ABOVE)
    for axis in axes:
        axis.grid(alpha=0.3)
    for axis in axes[:-1]:
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(run.name)
    figure.savefig(path, dpi=120)
    return path
