"""Does it learn? The quickstart over several seeds, from warm start to held-out evaluation.

    python bench/learn.py                      # three seeds, prints the README's table
    python bench/learn.py --seeds 0 --config quickstart -- --max_steps 4

    python bench/learn.py --config musique/small --measures recall f1 --against outputs/blind

Everything after `--` goes to `air train`. A seed whose run is already complete under --out is read, not repeated.
Intervals (airloop/stats/): training reward over episodes, to look at only; held-out values of one seed over its tasks,
of all seeds over data sets or tasks (draws of one table are not independent, nor are the seeds of a task), differences
paired. Which seeds were shown is noted under --out: what is shown of others later has wider intervals, and says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean as mean

from airloop.runs.run import Run
from airloop.stats.intervals import difference, mean_interval
from airloop.stats.looks import Looks, level_after, percent
from airloop.types import Trajectory
from airloop.watch.display.summary import paired
from airloop.watch.metrics.rows import passes, per_task, row_key


def finished(directory: Path) -> Run:
    done = [p for p in sorted(directory.glob("exp*")) if Run.open(p).status()["status"] == "completed"]
    if not done:
        raise SystemExit(f"{directory} has no completed run")
    return Run.open(done[-1])


def train(seed: int, options: argparse.Namespace) -> Run:
    directory = Path(options.out) / f"seed_{seed}"
    done = [p for p in sorted(directory.glob("exp*")) if Run.open(p).status()["status"] == "completed"]
    if not done:
        began = time.perf_counter()
        command = [sys.executable, "-m", "airloop.cli", "train", options.config, "--seed", str(seed)]
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "log.txt").open("w") as log:
            subprocess.run(
                [*command, "--output_dir", str(directory), *options.flags], check=True, stdout=log, stderr=log
            )
        done = sorted(directory.glob("exp*"))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        cost = {"minutes": (time.perf_counter() - began) / 60, "peak_gib": peak}
        (done[-1] / "cost.json").write_text(json.dumps(cost))
    return Run.open(done[-1])


def edge_rewards(run: Run) -> tuple[list[float], list[float]]:
    steps = [m["rewards"] for m in run.metrics("train")]
    return [r for s in steps[:3] for r in s], [r for s in steps[-3:] for r in s]


def by_cluster(trajectories: list[Trajectory], values: list[float]) -> list[float]:
    found: dict[str, list[float]] = {}
    for trajectory, value in zip(trajectories, values, strict=True):
        found.setdefault(trajectory.task.payload.get("dataset", trajectory.task.id), []).append(value)
    return [sum(v) / len(v) for v in found.values()]


def line(text: str, name: str, before: list[float], after: list[float], level: float) -> str:
    """Of the measure `name`, a value for each task or data set on both sides."""
    share = passes(name, [*before, *after])
    one, two = (mean_interval(side, level, share) for side in (before, after))
    gain = difference(after, before, level, share)
    word = "" if gain.word in ("higher", "lower") else f", {gain.word}"
    return f"| {text} | {one} | {two} | {gain.signed}{word} |"


def measured(trajectory: Trajectory, name: str) -> float:
    """A measure of an episode: its reward, one of its components, or a metric that is never trained on."""
    found = {**trajectory.rewards, **trajectory.metrics, "reward": trajectory.reward}
    if name not in found:
        raise SystemExit(f"{trajectory.id} has no measure {name!r}; it has {', '.join(sorted(found))}")
    return found[name]


def held_out(
    runs: Mapping[int, Run], measures: Sequence[str], level: float
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Before and after RL on the same rows: each seed by tasks, all seeds by data sets; returns the pairs."""
    before, after = [], []
    rows = {seed: paired(run.evaluation("before"), run.evaluation("after")) for seed, run in runs.items()}
    for one, two in rows.values():
        before, after = before + one, after + two
    for name in measures:
        print(f"\n| held out: {name} | warm start | after RL | difference |\n|---|---|---|---|")
        for seed, sides in rows.items():
            b, a = (per_task((row_key(t), measured(t, name)) for t in side) for side in sides)
            print(line(f"seed {seed} ({len(b)} tasks)", name, b, a, level))
        b, a = (by_cluster(side, [measured(t, name) for t in side]) for side in (before, after))
        print(line(f"all, over {len(b)} data sets or tasks", name, b, a, level))
    return before, after


def families(before: list[Trajectory], after: list[Trajectory], measures: Sequence[str], level: float) -> None:
    """A line per task family and measure; the interval is over its data sets or tasks, all seeds of one together."""
    names = sorted({t.task.curve for t in before})
    if len(names) < 2:
        return
    print("\n| held out, by task | warm start | after RL | difference |\n|---|---|---|---|")
    for name in names:
        for measure in measures:
            sides = [[t for t in side if t.task.curve == name] for side in (before, after)]
            b, a = (by_cluster(side, [measured(t, measure) for t in side]) for side in sides)
            print(line(f"{name}, {measure} ({len(b)} data sets or tasks)", measure, b, a, level))


def against(runs: Mapping[int, Run], others: Mapping[int, Run], measures: Sequence[str], level: float) -> None:
    """The same rows after both kinds of training, seed by seed; intervals over tasks, all seeds of a task together."""
    print("\n| held out, after training | the other run | this run | difference |\n|---|---|---|---|")
    for name in measures:
        here: list[Trajectory] = []
        there: list[Trajectory] = []
        for seed, run in runs.items():
            one, two = paired(others[seed].evaluation("after"), run.evaluation("after"))
            there, here = there + one, here + two
        b, a = (by_cluster(side, [measured(t, name) for t in side]) for side in (there, here))
        print(line(f"{name}, over {len(b)} data sets or tasks", name, b, a, level))


def course(run: Run, name: str) -> list[float]:
    """A measure at every training step; where no episode had it, as it was before."""
    found: list[float] = []
    for m in run.metrics("train"):
        value = {**m["components"], **m["metrics"], "reward": m["reward"]}.get(name)
        found.append(value if value is not None else found[-1] if found else float("nan"))
    return found


def curves(runs: Mapping[int, Run], others: Mapping[int, Run], measures: Sequence[str], parts: int = 6) -> None:
    """Training's own course: the mean over seeds in each part of the run."""
    print(f"\n| in training, mean of the seeds | {' | '.join(f'part {i + 1} of {parts}' for i in range(parts))} |")
    print("|---|" + "---|" * parts)
    for label, side in (("", runs), (", the other run", others)):
        for name in measures if side else ():
            values = [course(run, name) for run in side.values()]
            cuts = [len(values[0]) * i // parts for i in range(parts + 1)]
            means = [mean([v for c in values for v in c[i:j]]) for i, j in itertools.pairwise(cuts) if j > i]
            print(f"| {name}{label} | {' | '.join(f'{m:.3f}' for m in means)} |")


def plot(runs: Mapping[int, Run], others: Mapping[int, Run], measures: Sequence[str], path: str) -> None:
    """Each seed thin, their mean thick, smoothed over five steps: a step's tasks differ more than the policies do."""
    import matplotlib

    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(measures), figsize=(4.2 * len(measures), 3), squeeze=False)
    for axis, name in zip(axes[0], measures, strict=True):
        for side, colour, label in ((runs, "#0b6", "trained"), (others, "#c33", "the other run")):
            smooth = [
                [mean(c[max(0, i - 4) : i + 1]) for i in range(len(c))]
                for c in (course(r, name) for r in side.values())
            ]
            for line_ in smooth:
                axis.plot(range(1, len(line_) + 1), line_, color=colour, alpha=0.3, linewidth=1)
            if smooth:
                middle = [mean(values) for values in zip(*smooth, strict=False)]
                axis.plot(range(1, len(middle) + 1), middle, color=colour, linewidth=2, label=label)
        axis.set(title=name, xlabel="step")
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="outputs/learn")
    parser.add_argument("--machine", default=f"{platform.machine()}, {os.cpu_count()} cores", help="named in the table")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time; more only where cores or GPUs abound")
    parser.add_argument("--measures", nargs="+", default=["improved", "reward"], help="of the held-out episodes")
    parser.add_argument("--against", help="runs of the same seeds and rows to compare with, as DIR/seed_0/exp…")
    parser.add_argument("--plot", help="write training's course as a picture, as in curves.svg")
    parser.add_argument("flags", nargs="*", help="further flags of air train, after --")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda seed: train(seed, options), options.seeds))

    print(f"\n{options.machine}, {time.strftime('%Y-%m-%d')}, {options.config}, seeds {options.seeds}\n")
    print("| training reward | first 3 steps | last 3 steps | difference |\n|---|---|---|---|")
    sides = [edge_rewards(run) for run in runs]
    together = tuple([r for side in sides for r in side[i]] for i in range(2))
    for name, (first, last) in zip([*(f"seed {s}" for s in options.seeds), "all"], [*sides, together], strict=True):
        one, two = mean_interval(first), mean_interval(last)
        print(f"| {name} | {one} | {two} | {two.mean - one.mean:+.3f} |")

    looks = Looks(Path(options.out) / "looks.jsonl")
    level = level_after(len(seen := looks.before(options.seeds)))
    if seen:
        sets = "; ".join(" ".join(map(str, sorted(seeds))) for seeds in seen)
        print(f"\nSeeds {sets} were shown before: what follows has intervals of {percent(level)} instead of 95 %.")
    by_seed = dict(zip(options.seeds, runs, strict=True))
    before, after = held_out(by_seed, options.measures, level)
    looks.note(options.seeds)
    families(before, after, options.measures, level)
    others = {seed: finished(Path(options.against) / f"seed_{seed}") for seed in options.seeds if options.against}
    if others:
        against(by_seed, others, options.measures, level)
    curves(by_seed, others, options.measures)
    if options.plot:
        plot(by_seed, others, options.measures, options.plot)
    for seed, run in zip(options.seeds, runs, strict=True):
        if (cost := run.path / "cost.json").is_file():
            data = json.loads(cost.read_text())
            print(f"seed {seed}: {data['minutes']:.1f} min, largest process {data['peak_gib']:.2f} GiB")


if __name__ == "__main__":
    main()
