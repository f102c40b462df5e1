"""Does it learn? The quickstart over several seeds, from warm start to held-out evaluation.

    python bench/learn.py                      # three seeds, prints the README's table
    python bench/learn.py --seeds 0 --config configs/quickstart.toml -- --max_steps 4

Everything after `--` goes to `air train`. A seed whose run is already complete under --out is read, not repeated.
Intervals: training reward over episodes; held-out values over tasks and, more careful, over data sets (draws of
one table are not independent). The seeds' pooled lines treat every seed's episodes or tasks alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from air.lab.intervals import Interval, bootstrap_difference, bootstrap_mean
from air.run import Run
from air.types import Trajectory
from air.watch.summary import paired


def train(seed: int, options: argparse.Namespace) -> Run:
    directory = Path(options.out) / f"seed_{seed}"
    done = [p for p in sorted(directory.glob("exp*")) if Run.open(p).status()["status"] == "completed"]
    if not done:
        began = time.perf_counter()
        command = [sys.executable, "-m", "air.cli", "train", "@", options.config, "--seed", str(seed)]
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


def line(name: str, before: Interval, after: Interval, gain: Interval) -> str:
    return f"| {name} | {before} | {after} | {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] |"


def families(before: list[Trajectory], after: list[Trajectory]) -> None:
    """A line per task family and measure; the interval is over episodes of all seeds."""
    names = sorted({t.task.curve for t in before})
    if len(names) < 2:
        return
    print("\n| held-out, by task | warm start | after RL | difference |\n|---|---|---|---|")
    for name in names:
        for measure in ("improved", "headroom"):
            sides = [[t.metrics[measure] for t in side if t.task.curve == name] for side in (before, after)]
            b, a = sides
            gain = bootstrap_difference(a, b)
            print(line(f"{name}, {measure} ({len(b)} episodes)", bootstrap_mean(b), bootstrap_mean(a), gain))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/quickstart.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="outputs/learn")
    parser.add_argument("--machine", default=f"{platform.machine()}, {os.cpu_count()} cores", help="named in the table")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time; more only where cores or GPUs abound")
    parser.add_argument("flags", nargs="*", help="further flags of air train, after --")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda seed: train(seed, options), options.seeds))

    print(f"\n{options.machine}, {time.strftime('%Y-%m-%d')}, {options.config}, seeds {options.seeds}\n")
    print("| training reward | first 3 steps | last 3 steps | difference |\n|---|---|---|---|")
    firsts: list[float] = []
    lasts: list[float] = []
    for seed, run in zip(options.seeds, runs, strict=True):
        first, last = edge_rewards(run)
        one, two = bootstrap_mean(first), bootstrap_mean(last)
        print(f"| seed {seed} | {one} | {two} | {two.mean - one.mean:+.3f}{'' if one.overlaps(two) else ', apart'} |")
        firsts, lasts = firsts + first, lasts + last
    one, two = bootstrap_mean(firsts), bootstrap_mean(lasts)
    print(f"| all | {one} | {two} | {two.mean - one.mean:+.3f}{'' if one.overlaps(two) else ', apart'} |\n")

    print("| held-out tasks: share that beats the baseline | warm start | after RL | difference |\n|---|---|---|---|")
    all_one: list[Trajectory] = []
    all_two: list[Trajectory] = []
    for seed, run in zip(options.seeds, runs, strict=True):
        before, after = paired(run.evaluation("before"), run.evaluation("after"))
        b, a = ([t.metrics["improved"] for t in side] for side in (before, after))
        print(
            line(f"seed {seed} ({len(b)} episodes)", bootstrap_mean(b), bootstrap_mean(a), bootstrap_difference(a, b))
        )
        all_one, all_two = all_one + before, all_two + after
    for name in ("improved", "reward"):
        b, a = ([t.reward if name == "reward" else t.metrics[name] for t in s] for s in (all_one, all_two))
        cb, ca = by_cluster(all_one, b), by_cluster(all_two, a)
        gain = bootstrap_difference(ca, cb)
        print(line(f"all, {name}, over {len(cb)} data sets", bootstrap_mean(cb), bootstrap_mean(ca), gain))
    families(all_one, all_two)
    for seed, run in zip(options.seeds, runs, strict=True):
        if (cost := run.path / "cost.json").is_file():
            data = json.loads(cost.read_text())
            print(f"seed {seed}: {data['minutes']:.1f} min, largest process {data['peak_gib']:.2f} GiB")


if __name__ == "__main__":
    main()
