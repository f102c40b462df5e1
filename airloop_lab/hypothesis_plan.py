"""`air lab run --dry-run`: all that is checked before a run, and the runs that would be made; nothing is started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airloop_lab.gpu_shares import gpus_of, visible_gpus
from airloop_lab.hypothesis import Hypothesis
from airloop_lab.hypothesis_runs import FILE, check_run, open_lab


def make_plan(hypothesis: Hypothesis, seeds: Sequence[int], out: Path, jobs: int) -> dict[str, Any]:
    """Refuses what `air lab run` would refuse."""
    check_run(hypothesis, seeds, jobs)
    done = set()
    if (out / FILE).is_file():
        done = {(member.seed, member.variant.name) for member in open_lab(out).members() if member.finished}
    configs = {variant.name: hypothesis.config(variant) for variant in hypothesis.variants}
    runs = [
        {
            "seed": seed,
            "variant": name,
            "text": hypothesis.variant(name).text,
            "model": config.model.name,
            "steps": config.max_steps,
            "gpus": gpus_of(config),
            "done": (seed, name) in done,
        }
        for seed in seeds
        for name, config in configs.items()
    ]
    budget = hypothesis.written.budget
    return {
        "name": hypothesis.name,
        "out": str(out),
        "jobs": jobs,
        "gpus": visible_gpus(os.environ),
        "steps": sum(config.max_steps for config in configs.values()) * len(seeds),
        "budget": {"steps": budget.steps, "minutes": budget.minutes},
        "runs": runs,
    }


def format_plan(plan: dict[str, Any]) -> str:
    budget, runs = plan["budget"], plan["runs"]
    most = f"{plan['steps']} of {budget['steps']} steps, at most {budget['minutes']:g} minutes"
    lines = [f"{plan['name']}: {len(runs)} runs into {plan['out']}; {most}"]
    width = max(len(run["variant"]) for run in runs)
    for run in runs:
        done = "   complete already" if run["done"] else ""
        lines.append(f"  seed {run['seed']}  {run['variant']:{width}s}  {run['steps']} steps of {run['model']}{done}")
    lines.append(f"  {_spread(plan)}")
    return "\n".join([*lines, "Nothing was started: this was a dry run."])


def _spread(plan: dict[str, Any]) -> str:
    at_once = f"{plan['jobs']} at a time" if plan["jobs"] > 1 else "one at a time"
    if not plan["gpus"]:
        return f"{at_once}; no GPU is visible here"
    counts = sorted({run["gpus"] for run in plan["runs"]})
    each = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{at_once}, each with {each} of the GPUs {', '.join(plan['gpus'])}"
