"""The tables and pictures of docs/recipes.md, made from packed runs:

    air log pack RUN --out docs/recipes/gsm8k+qwen2.5-coder-0.5b+seed0.tar.xz
    python scripts/recipes.py

A file's name says of which recipe it is a seed. On the page a recipe's results stand between <!-- NAME --> and
<!-- end -->; what stands there is made anew, and nothing else is touched.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from airloop.runs.packed import unpack_run
from airloop.runs.run import Run
from airloop.stats.intervals import difference, mean_interval
from airloop.success import METRIC, common_name, step_success
from airloop.types import Trajectory
from airloop.watch.metrics.rows import per_task, row_key

DOCS = Path(__file__).parents[1] / "docs"
NAMED = re.compile(r"(?P<recipe>.+)\+seed(?P<seed>\d+)\.tar\.xz")
KINDS = {"test": ("o", "test split"), "eval": ("s", "eval split"), "base": ("x", "the model itself, test split")}
BESIDE = {"musique": ("recall", "em"), "mlgym": ("headroom", "score")}  # measures that are shown beside success
SCALES = ("score",)  # of each task another one: no mean over several
SIDES = {"base": "the model itself", "before": "before", "after": "after"}
COLOURS = ("#2f6fb0", "#b0562f", "#3f8f4f", "#7a4fa3")


def main(folder: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        for recipe, runs in found_runs(folder, Path(scratch)).items():
            picture = page.parent / "img" / "recipes" / f"{recipe}.svg"
            draw(recipe, runs, picture)
            shown = f"![{recipe}: success by step]({picture.relative_to(page.parent).as_posix()})"
            measures = BESIDE.get(recipe.split("+")[0], ())
            text = put(text, recipe, "\n".join([*table(runs), *beside(runs, measures), "", shown]))
    page.write_text(text, encoding="utf-8")


def found_runs(folder: Path, scratch: Path) -> dict[str, dict[int, Run]]:
    """Of each recipe, its runs by their seeds."""
    found: dict[str, dict[int, Run]] = defaultdict(dict)
    for number, packed in enumerate(sorted(folder.glob("*.tar.xz"))):
        named = NAMED.fullmatch(packed.name)
        if named is None:
            raise SystemExit(f"{packed}: its name is not RECIPE+seedN.tar.xz")
        run = Run.open(unpack_run(packed, scratch / str(number)))
        found[named["recipe"]][int(named["seed"])] = run
    return found


def put(text: str, recipe: str, made: str) -> str:
    place = re.compile(rf"(<!-- {re.escape(recipe)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise SystemExit(f"the page has no single place for {recipe}: <!-- {recipe} --> … <!-- end -->")
    return place.sub(lambda found: f"{found[1]}{made}\n", text)


# --- tables -------------------------------------------------------------------------------------------------


def table(runs: dict[int, Run]) -> Iterator[str]:
    """A line for each seed and, of several, one for all of them: intervals are over tasks, each with its mean."""
    first = next(iter(runs.values()))
    name = common_name(first.metrics("train")) or METRIC
    yield f"| seed | {name} before | after | difference | steps | minutes |"
    yield "|---|---|---|---|---|---|"
    sides = {seed: (by_task(run.evaluation("before")), by_task(run.evaluation("after"))) for seed, run in runs.items()}
    whole = [seed for seed, (_, after) in sides.items() if after]
    for seed, run in runs.items():
        steps, minutes = len(run.metrics("train")), run.spent_s() / 60
        if seed in whole:
            yield f"| {seed} | {row(*sides[seed])} | {steps} | {minutes:.1f} |"
        else:
            yield f"| {seed} | {recorded_row(run)} | {steps} | – |"
    if len(whole) > 1:
        named = "all" if len(whole) == len(runs) else ", ".join(map(str, whole))
        yield f"| {named} | {row(*(mean_of([sides[seed][i] for seed in whole]) for i in (0, 1)))} | | |"
    yield ""
    yield f"{len(sides[next(iter(runs))][0])} held-out tasks, 95 % intervals. {machines(runs.values())}"


def by_task(trajectories: Sequence[Trajectory], measure: str = METRIC) -> dict[tuple[str, str], float]:
    scored = [t for t in trajectories if t.ending != "infra_error" and measure in t.metrics]
    tasks = dict.fromkeys((t.task.env, t.task.id) for t in scored)
    return dict(zip(tasks, per_task((row_key(t), t.metrics[measure]) for t in scored), strict=True))


def beside(runs: dict[int, Run], measures: Sequence[str]) -> Iterator[str]:
    """Over the seeds that have their episodes: the model itself, other measures, and each family of tasks."""
    whole = {seed: run for seed, run in runs.items() if run.evaluation("after")}
    episodes = {side: [found for run in whole.values() if (found := run.evaluation(side))] for side in SIDES}
    sides = [side for side, found in episodes.items() if len(found) == len(whole)]
    families = sorted({t.task.family for found in episodes.values() for one in found for t in one})
    shown = [*([METRIC] if "base" in sides else []), *(m for m in measures if m not in SCALES)]
    if not whole or (not shown and len(families) < 2):
        return
    yield ""
    yield f"| seeds {', '.join(map(str, whole))} | {' | '.join(SIDES[side] for side in sides)} | difference |"
    yield "|---" * (len(sides) + 2) + "|"
    for measure in shown:
        means = [mean_of([by_task(one, measure) for one in episodes[side]]) for side in sides]
        cells = [str(mean_interval(list(one.values()), share=measure == METRIC)) for one in means]
        gain = row(means[-2], means[-1]).split(" | ")[-1]
        yield f"| {'success' if measure == METRIC else measure} | {' | '.join(cells)} | {gain} |"
    for family in families if len(families) > 1 else ():
        cells = [of_family([t for one in episodes[side] for t in one], family, measures) for side in sides]
        yield f"| {family} | {' | '.join(cells)} | |"


def of_family(trajectories: Sequence[Trajectory], family: str, measures: Sequence[str]) -> str:
    """Success in it, and in brackets each measure's mean over the episodes that have one."""
    own = [t for t in trajectories if t.task.family == family and t.ending != "infra_error"]
    success = sum(t.metrics[METRIC] for t in own) / len(own)
    means = []
    for measure in measures:
        values = [t.metrics[measure] for t in own if measure in t.metrics]
        means += [f"{measure} {sum(values) / len(values):.3f}"] if values else []
    return f"{success:.2f} of {len(own)}" + (f" ({', '.join(means)})" if means else "")


def mean_of(sides: Sequence[dict[tuple[str, str], float]]) -> dict[tuple[str, str], float]:
    return {task: sum(side[task] for side in sides) / len(sides) for task in sides[0] if all(task in s for s in sides)}


def row(before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]) -> str:
    both = [task for task in before if task in after]
    one, two = [before[task] for task in both], [after[task] for task in both]
    gain = difference(two, one, share=True)
    return f"{mean_interval(one, share=True)} | {mean_interval(two, share=True)} | {gain.signed}"


def recorded_row(run: Run) -> str:
    """Of a run that was packed before its last episodes were there: what it recorded, without a paired interval."""
    held = {line["name"]: line[METRIC] for line in run.metrics("eval")}
    shown = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**held[name]) for name in ("before", "after")]
    return f"{' | '.join(shown)} | {held['after']['mean'] - held['before']['mean']:+.3f}"


def machines(runs: Iterable[Run]) -> str:
    """What they were made on; a run that does not know is not passed over."""
    made = [run.status().get("machine", {}) for run in runs]
    told = [", ".join(filter(None, (m.get("gpu") or m.get("processor"), m.get("versions")))) for m in made]
    return "; ".join(dict.fromkeys(one or "machine not recorded" for one in told)) + "."


# --- pictures -----------------------------------------------------------------------------------------------


def draw(recipe: str, runs: dict[int, Run], path: Path) -> None:
    """Success in training by step, and on held-out tasks with its interval."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = recipe  # the same runs, the same file

    figure = Figure(figsize=(7, 3.6))
    axis = figure.subplots()
    seen = set()
    for number, ((seed, run), colour) in enumerate(zip(runs.items(), COLOURS * len(runs), strict=False)):
        apart = (number - (len(runs) - 1) / 2) * len(run.metrics("train")) / 100  # seeds beside each other
        steps = [(m["step"] + 1, found[1]) for m in run.metrics("train") if (found := step_success(m))]
        axis.plot(*zip(*steps, strict=True), color=colour, alpha=0.5, linewidth=1, label=f"seed {seed}, in training")
        for line in run.metrics("eval"):
            held = line[METRIC]
            error = [[held["mean"] - held["low"]], [held["high"] - held["mean"]]]
            kind = "base" if line["name"] == "base" else line["split"]
            shape, said = KINDS.get(kind, KINDS["eval"])
            place = line["step"] + apart
            axis.errorbar(place, held["mean"], yerr=error, fmt=shape, color=colour, capsize=3, markersize=5)
            seen.add((shape, said))
    axis.set(xlabel="step", ylabel="success", title=recipe, ylim=(-0.02, 1.02))
    for shape, said in sorted(seen):
        axis.plot([], [], f"k{shape}", label=f"{said}, 95 %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=DOCS / "recipes")
    parser.add_argument("--page", type=Path, default=DOCS / "recipes.md")
    options = parser.parse_args()
    main(options.folder, options.page)
