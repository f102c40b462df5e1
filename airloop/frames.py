"""A run as data frames, for notebooks: `airloop.load_run(path)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.extras import check_extra
from airloop.runs.run import Run
from airloop.text.nested import flatten
from airloop.types import Trajectory

if TYPE_CHECKING:
    import pandas as pd

    from airloop.config import Config


class LoadedRun:
    """A run's directory to look at; it may still be going on, and is never written to. Names of columns are those of
    docs/metrics.md, with a slash where a line of metrics has a table: `learner/entropy`.

        run = load_run("outputs/exp1.0-arith-1117")
        run.steps[["success", "reward", "learner/entropy"]]
        run.episodes.groupby("task").reward.mean()
        run.evaluation("after").success.mean()
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<{self.run.name}: {self.run.status()['status']}>"

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def config(self) -> Config:
        return self.run.config

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each step of training, by its number."""
        return _frame((flatten(line, "/") for line in self.run.metrics("train")), index="step")

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row for each evaluation on held-out tasks, by its name: before, step_0010, after."""
        return _frame((flatten(line, "/") for line in self.run.metrics("eval")), index="name")

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """A row for each episode of training that counts, those that failed and were tried again included
        (ending = "infra_error")."""
        found = sorted((self.path / "trajectories").glob("step_*"))
        numbered = [(int(path.name.removeprefix("step_")), path) for path in found]
        rows = [{"step": step, **_row(t)} for step, path in numbered for t in self.run.episodes_in(path)]
        return _frame(rows, index="id")

    @cached_property
    def alarms(self) -> pd.DataFrame:
        return _frame(self.run.alarms())

    def evaluation(self, name: str) -> pd.DataFrame:
        """A row for each episode of an evaluation: "before", "step_0010", "after"."""
        return _frame(map(_row, self.run.evaluation(name)), index="id")

    def trajectory(self, id: str) -> Trajectory:
        """One episode with all of its messages and tokens. KeyError where there is none of that id."""
        for part in ("trajectories", "evaluations"):
            for path in (self.path / part).glob(f"*/{id}.json"):
                return next(t for t in self.run.episodes_in(path.parent) if t.id == id)
        raise KeyError(id)


def load_run(path: str | Path) -> LoadedRun:
    """A run's metrics and episodes as data frames of pandas: `steps`, `episodes`, `evaluations`, `alarms`. `path`: the
    directory that `air train` made. AirError where it is none, or where pandas is missing.

        airloop.load_run("outputs/exp1.0-arith-1117").steps.success.plot()
    """
    check_extra("frames", "load_run")
    return LoadedRun(Run.open(Path(path)))


def _frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> pd.DataFrame:
    import pandas as pd

    made = pd.DataFrame(list(rows))
    return made.set_index(index) if index is not None and index in made else made


def _row(episode: Trajectory) -> dict[str, Any]:
    return {
        "id": episode.id,
        "env": episode.task.env,
        "task": episode.task.id,
        "family": episode.task.curve,
        "split": episode.task.split,
        "seed": episode.seed,
        "version": episode.version,
        "ending": episode.ending,
        "success": episode.metrics.get("success"),
        "reward": episode.reward,
        "turns": len(episode.turns),
        "sampled_tokens": episode.sampled_tokens,
        "seconds": episode.seconds,
        "error": episode.error,
        **{f"rewards/{name}": value for name, value in episode.rewards.items()},
        **{f"metrics/{name}": value for name, value in episode.metrics.items()},
    }
