"""Rejection sampling: a policy's own best episodes as the demonstrations of the next supervised start.

The policy plays every task several times, as in an evaluation of the training split; of each task the best episodes
that succeeded are kept, with the tokens that they were sampled as. `warmstart.source` takes the folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.eval.evaluate import EvalOptions, evaluate
from airloop.events import Watcher
from airloop.files import write_json
from airloop.runs.run import read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.success import METRIC
from airloop.types import Trajectory
from airloop.warmstart import best_first

DEMONSTRATIONS = "demonstrations"


@dataclass(frozen=True)
class Kept:
    """Which episodes become demonstrations."""

    of_a_task: int = 2
    success: float = 1.0  # the least
    reward: float | None = None  # the least; where an environment names no success it must be given

    def choose(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        known = [t for t in episodes if self._is_good(t)]
        taken: Counter[tuple[str, str]] = Counter()
        chosen = []
        for episode in best_first(known):
            key = (episode.task.env, episode.task.id)
            if taken[key] < self.of_a_task:
                taken[key] += 1
                chosen.append(episode)
        return chosen

    def _is_good(self, episode: Trajectory) -> bool:
        if self.reward is not None and episode.reward < self.reward:
            return False
        success = episode.metrics.get(METRIC)
        if success is None and self.reward is None:
            raise AirError(
                f"The environment {episode.task.env!r} does not say what success is, so nothing says which episodes "
                "are good.",
                "give the least reward: --min-reward R.",
            )
        return success is None or success >= self.success


def distill(argv: Sequence[str], options: EvalOptions, kept: Kept, watcher: Watcher) -> dict[str, Any]:
    """What was played, what is kept of it, and where. A stopped one goes on with the same `out`."""
    report = evaluate(argv, replace(options, split=options.split or "train"), watcher)
    directory = Path(report["directory"])
    episodes = [t for t in read_trajectories(directory / "episodes") if t.ending != "infra_error"]
    chosen = kept.choose(episodes)
    if not chosen:
        best = max((t.metrics.get(METRIC, t.reward) for t in episodes), default=0.0)
        raise AirError(
            f"None of {len(episodes)} episodes is good enough: the best has {best:g}.",
            f"more of each task (--rollouts), or less is asked of them (--min-success); all are in {directory}.",
        )
    for number, episode in enumerate(chosen):
        write_json(directory / DEMONSTRATIONS / f"{number:05d}-{episode.id}.json", to_json(episode))
    tasks = {(t.task.env, t.task.id) for t in episodes}
    solved = {(t.task.env, t.task.id) for t in chosen}
    return {
        "directory": str(directory / DEMONSTRATIONS),
        "episodes": len(episodes),
        "demonstrations": len(chosen),
        "tasks": len(tasks),
        "tasks_solved": len(solved),
        "agent": report["agent"],
    }


def format_distilled(report: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"{report['demonstrations']} demonstrations of {report['tasks_solved']} of {report['tasks']} tasks, from "
            f"{report['episodes']} episodes of {report['agent']}. A supervised start from them:",
            "  [warmstart]",
            f'  source = "{report["directory"]}"',
            f"  episodes = {report['demonstrations']}",
        ]
    )
