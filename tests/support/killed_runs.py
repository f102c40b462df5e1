"""Runs of a tiny model that are killed, resumed and compared with one that was never killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file

from airloop.config import load_config
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display

FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "orchestrator.env.0.args.max_number": "3",
    "orchestrator.env.0.args.split_by": "none",
    "orchestrator.batch_size": "16",
    "orchestrator.rollouts_per_example": "4",
    "seq_len": "48",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "6",
    "orchestrator.eval.interval": "3",
    "trainer.optim.lr": "1e-2",
    "warmstart.steps": "30",
    "warmstart.episodes": "64",
    "warmstart.lr": "1e-2",
    "ckpt.interval": "2",
    "max_steps": "8",
    "deterministic": "true",
}


def saved_episodes(directory: Path) -> int:
    try:
        return len(list(directory.glob("exp*/trajectories/*/*.json")))
    except FileNotFoundError:  # a directory was moved while we looked
        return 0


def flags(directory: Path, **changes: str) -> list[str]:
    settings = {**FLAGS, "output_dir": str(directory), **changes}
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


def run_here(directory: Path, **changes: str) -> Run:
    config = load_config(flags(directory, **changes))
    return start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True).run


def what_happened(run: Run) -> dict[str, Any]:
    """Everything that must be equal between two runs that are the same: numbers, not times."""
    episodes = [
        (t.task.id, t.seed, t.version, t.reward, t.branches)
        for step in range(run.config.max_steps)
        for _, t in sorted(run.finished(step).items())
    ]
    steps = [(m["step"], m["reward"], m["learner"]["loss"], m["learner"]["grad_norm"]) for m in run.metrics("train")]
    evals = [(m["step"], m["name"], m["reward"]["mean"]) for m in run.metrics("eval")]
    last = run.path / "checkpoints" / f"step_{run.config.max_steps}" / "adapter" / "adapter_model.safetensors"
    weights = [(k, v.numpy().tobytes()) for k, v in sorted(load_file(last).items())]
    return {"episodes": episodes, "steps": steps, "evals": evals, "weights": weights}


def first_difference(run: Run, wanted: dict[str, Any]) -> str | None:
    """Where two runs that must be the same part, in a line: pytest would take minutes over megabytes of tuples."""
    found = what_happened(run)
    for part in wanted:
        for i, (a, b) in enumerate(zip(found[part], wanted[part], strict=False)):
            if a != b:
                return f"{part}[{i}]: {str(a)[:200]} where {str(b)[:200]} was to be"
        if len(found[part]) != len(wanted[part]):
            return f"{part}: {len(found[part])} where {len(wanted[part])} were to be"
    return None
