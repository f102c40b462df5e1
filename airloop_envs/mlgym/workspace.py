"""What a task's sandboxes are made of: the agent's, without anything secret, and the grader's, with everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from airloop.errors import AirError
from airloop.sandbox.base import WORKSPACE, Image, Limits
from airloop_envs.mlgym.spec import TaskSpec

SUBMISSION = "submission.csv"
ANSWERS = "answers"
MOST_BINDS = 500  # for data that cannot be shown as one directory
# A sandbox shows packages, not their programs.
TORCHRUN = """
command -v torchrun >/dev/null || { torchrun() { python -m torch.distributed.run "$@"; }; export -f torchrun; }"""

Binds = tuple[tuple[str, str], ...]
LIMITS = Limits()


@dataclass(frozen=True)
class Sandboxes:
    """What all sandboxes of a run have in common, whatever the task."""

    limits: Limits = LIMITS
    env: tuple[tuple[str, str], ...] = ()
    binds: Binds = ()
    setup: str = ""
    gpus: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    container: str = ""


PLAIN = Sandboxes()


def agent_image(spec: TaskSpec, sandboxes: Sandboxes = PLAIN) -> Image:
    """Starter code and data, and no trace of secret files, of answers or of an old submission."""
    hidden = hidden_paths(spec)
    files = [(name, path) for name, path in starter_files(spec) if not _is_hidden(path, hidden)]
    return Image(
        files=tuple((name, path.read_bytes(), _mode(spec, name, path)) for name, path in files),
        binds=(*sandboxes.binds, *visible_data(spec)),
        env=sandboxes.env,
        setup=sandboxes.setup + _setup(spec),
        limits=sandboxes.limits,
        gpus=sandboxes.gpus,
        network=sandboxes.network,
        container=sandboxes.container,
    )


def grader_image(spec: TaskSpec, sandboxes: Sandboxes = PLAIN) -> Image:
    """Everything of the task, and nothing of what agents get besides: no tools, no variables, no network."""
    answers = ((str(spec.answers), f"{WORKSPACE}/{ANSWERS}"),) if spec.answers else ()
    return Image(
        files=tuple((name, path.read_bytes(), _mode(spec, name, path)) for name, path in starter_files(spec)),
        binds=(*_data_binds(spec.data_directories(), frozenset()), *answers),
        setup=_setup(spec),
        limits=sandboxes.limits,
        gpus=sandboxes.gpus,
        container=sandboxes.container,
    )


def starter_files(spec: TaskSpec) -> Iterator[tuple[str, Path]]:
    """Name in the workspace and file on this machine, secret ones included. A submission that somebody left
    among them is nobody's work here, so it is not one of them (D15)."""
    for start in spec.starter_code:
        if start.is_file() and start.name != SUBMISSION:
            yield start.name, start
        for path in sorted(start.rglob("*")) if start.is_dir() else ():
            if path.is_file():
                yield f"{start.name}/{path.relative_to(start).as_posix()}", path


def graders(spec: TaskSpec) -> Callable[[str], bool]:
    """Tells of a file in the workspace whether it is the evaluation's: then the agent's version of it is ignored."""
    own = dict(starter_files(spec))
    return lambda name: is_evaluation(spec, name) or spec.is_secret(name, own.get(name))


def is_evaluation(spec: TaskSpec, name: str) -> bool:
    return any(PurePosixPath(name).is_relative_to(path) for path in spec.evaluation_paths)


def hidden_paths(spec: TaskSpec) -> frozenset[Path]:
    """Files and directories on this machine that an agent must not see, by whatever name they are linked."""
    files = spec.workspace_files() if spec.secret_files else {}
    secret = [path for name, path in files.items() if spec.is_secret(name, path)]
    return frozenset(path.resolve() for path in (*secret, *([spec.answers] if spec.answers else ())))


def visible_data(spec: TaskSpec) -> Binds:
    return _data_binds(spec.data_directories(), hidden_paths(spec))


def _mode(spec: TaskSpec, name: str, path: Path) -> int:
    executable = path.stat().st_mode & 0o111
    return 0o555 if spec.evaluation_read_only and is_evaluation(spec, name) else 0o644 | executable


def _setup(spec: TaskSpec) -> str:
    return TORCHRUN if spec.entry_point == "LMSubmissionTasks" else ""


def _is_hidden(path: Path, hidden: frozenset[Path]) -> bool:
    real = path.resolve()
    return real in hidden or any(parent in hidden for parent in real.parents)


@lru_cache(maxsize=256)  # a run's data does not change under it, and may be many files
def _data_binds(directories: tuple[tuple[str, Path], ...], hidden: frozenset[Path]) -> Binds:
    """Whole directories where that is possible: one with a hidden file in it, a link (which would lead nowhere
    inside) or another data set is shown entry by entry."""
    inner = {name for name, _ in directories[1:]}
    binds: list[tuple[str, str]] = []
    for name, directory in directories:
        split = {path for special in _special(directory, hidden) for path in special.parents}
        split |= {directory} if any(other.startswith(f"{name}/") for other in inner) else set()
        binds += [(str(path), f"{WORKSPACE}/{place}") for place, path in _pieces(name, directory, split, hidden)]
    if len(binds) > MOST_BINDS:
        raise AirError(
            f"{directories[0][1]} has secret files, links or another data set in a directory of many files, which "
            f"would take {len(binds)} mounts to show without them (at most {MOST_BINDS}).",
            "move them to a directory of their own.",
        )
    return tuple(binds)


def _special(directory: Path, hidden: frozenset[Path]) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() or (hidden and _is_hidden(path, hidden)):
                yield path


def _pieces(name: str, path: Path, split: set[Path], hidden: frozenset[Path]) -> Iterator[tuple[str, Path]]:
    if not path.exists() or _is_hidden(path, hidden):
        return
    if path not in split:
        yield name, path
        return
    for entry in sorted(path.iterdir()):
        yield from _pieces(f"{name}/{entry.name}", entry, split, hidden)
