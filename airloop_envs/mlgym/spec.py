"""A research task as MLGym describes it: one YAML for the task, one for each of its data sets.

The same form serves any checkout of MLGym and the tasks that come with air (builtin/). What MLGym's form
cannot say – which metric counts, in which direction, what the best known score is – comes from our own
tasks' `air:` section or from the registry in metrics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

EntryPoint = Literal["CSVSubmissionTasks", "ModelSubmissionTasks", "LMSubmissionTasks", "PythonSubmissionTasks"]
Direction = Literal["up", "down"]
ENTRY_POINTS: tuple[EntryPoint, ...] = get_args(EntryPoint)


@dataclass(frozen=True)
class Split:
    name: str
    file_regex: str


@dataclass(frozen=True)
class Dataset:
    name: str
    description: str
    data_path: str  # as written: a local directory or a hub id
    is_local: bool
    directory: Path | None  # where it is on this machine, if it is
    splits: tuple[Split, ...] = ()
    missing: str = ""  # why it is not here and the ways to get it; empty if it is
    command: str = ""  # that makes it here, where it is missing and the checkout has a script for that
    secret: tuple[str, ...] = ()  # in it: the grader's, whether the task says so or not


@dataclass(frozen=True)
class Yardstick:
    """What scores are measured with. `how` says where baseline and reference come from."""

    metric: str  # the key in the evaluation's output, compared without case
    direction: Direction
    baseline: float | None  # None: measured once, by running the baseline
    reference: float | None  # the known optimum, or the best score of a documented search
    how: str = ""
    optimum: bool = False  # the reference cannot be beaten by more than noise: more is a cheat
    noise: float = 0.0  # standard error of one evaluation
    floor: float = 1e-9  # smallest |baseline| an improvement is divided by
    bound: float | None = None  # no score lies beyond it (1 for an accuracy): one that does is a mistake or a cheat


@dataclass(frozen=True)
class TaskSpec:
    """Paths are absolute on this machine; names in the workspace are relative to its root.

    One with `problems` cannot be run; its other fields are then what could be read (of a YAML that cannot be
    parsed: nothing but `key`), and a `yardstick` whose metric is empty is none.
    """

    key: str  # the YAML's file name without .yaml: what configs call it ("titanic")
    id: str  # as in the YAML ("titanicSurvival")
    name: str
    description: str  # with {dataset_docs} filled in
    root: Path  # of the checkout, or of the built-in task
    entry_point: EntryPoint
    training_timeout: float
    starter_code: tuple[Path, ...]  # copied into the workspace root (a directory keeps its name)
    evaluation_paths: tuple[str, ...]  # in the workspace; the first is run
    baseline_paths: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    yardstick: Yardstick
    baseline_scores: tuple[Mapping[str, float], ...] = ()  # as the YAML has them
    sample_submission: Path | None = None
    secret_files: tuple[str, ...] = ()  # in the workspace or the data: never shown to the agent
    evaluation_read_only: bool = True
    requirements: Path | None = None
    answers: Path | None = None  # a host directory that only the grader sees, read-only, as <workspace>/answers
    builtin: bool = False
    variant: int = 0  # of a built-in task: which draw of its rows
    warnings: tuple[str, ...] = ()  # known mistakes of this very task, for whoever runs it
    problems: tuple[str, ...] = ()  # what is missing before it can be run, each with the way to get it
    exposed: tuple[str, ...] = ()  # in the workspace: likely answers that the agent can read (also in `warnings`)

    @property
    def runnable(self) -> bool:
        return not self.problems

    def data_directories(self) -> tuple[tuple[str, Path], ...]:
        """Local data: name in the workspace, directory on this machine. The first is "data", others lie in it."""
        local = [d.directory for d in self.datasets if d.is_local and d.directory]
        return tuple(("data" if i == 0 else f"data/{path.name}", path) for i, path in enumerate(local))

    def workspace_files(self) -> dict[str, Path]:
        """Every file of the untouched workspace, secret ones included: name in it, file on this machine."""
        files = {path.name: path for path in self.starter_code if path.is_file()}
        trees = [(path.name, path) for path in self.starter_code if path.is_dir()]
        for name, tree in (*trees, *self.data_directories()):
            below = sorted(path for path in tree.rglob("*") if path.is_file())
            files |= {f"{name}/{path.relative_to(tree).as_posix()}": path for path in below}
        return files

    def visible_files(self) -> dict[str, Path]:
        """The workspace as the agent may see it."""
        return {name: path for name, path in self.workspace_files().items() if not self.is_secret(name, path)}

    def is_secret(self, name: str, path: Path | None = None) -> bool:
        """Whether a file of the workspace (`path`: where it is on this machine) is in secret_files, which name
        files or directories relative to the workspace, to the data or to the checkout. A bare name is secret
        wherever it lies: what is copied twice is hidden twice."""
        names = [PurePosixPath(name)]
        if path is not None and path.is_relative_to(self.root):
            names.append(PurePosixPath(path.relative_to(self.root)))
        secrets = [parts for secret in self.secret_files if (parts := PurePosixPath(secret).parts)]
        return any(_contains(place.parts, parts) for place in names for parts in secrets)


def _contains(parts: tuple[str, ...], run: tuple[str, ...]) -> bool:
    return any(parts[i : i + len(run)] == run for i in range(len(parts) - len(run) + 1))
