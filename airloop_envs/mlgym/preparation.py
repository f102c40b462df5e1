"""`air tasks prepare`: a task's data made before an episode asks for it, and what agents will see of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from airloop.errors import AirError
from airloop.sandbox.backends import make_backend
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.data import BUILTIN, prepare
from airloop_envs.mlgym.generator import HELPERS, SCRIPT, find_generator, make
from airloop_envs.mlgym.library import Library
from airloop_envs.mlgym.measure import variants
from airloop_envs.mlgym.spec import TaskSpec


class Progress(Protocol):
    def phase(self, text: str, total: int = 0) -> None: ...

    def advance(self, detail: str = "") -> None: ...


@dataclass(frozen=True)
class Preparation:
    task: str
    source: str  # air or checkout
    done: str  # what was made, and where it is
    shown: tuple[str, ...]  # to agents, in their workspace
    hidden: tuple[str, ...]  # the grader's alone
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


async def prepare_task(args: MlgymArgs, watcher: Progress) -> Preparation:
    """Of the one task that the arguments name. AirError if its data cannot be made."""
    library = Library(args)
    root, key = library.locate(args.task_configs[0])
    if root == BUILTIN:
        return _prepare_ours(library, key, watcher)
    return await _prepare_theirs(args, root, key, watcher)


def _prepare_ours(library: Library, key: str, watcher: Progress) -> Preparation:
    draws = dict.fromkeys(variant for split in ("train", "eval") for variant in variants(key, split))
    watcher.phase(f"drawing the rows of {key}", len(draws))
    for variant in draws:
        prepare(key, variant)
        watcher.advance()
    spec = library.known(key, next(iter(draws)))
    place = next((d.directory.parent.parent for d in spec.datasets if d.directory), None)
    done = f"{len(draws)} draws of its rows are in {place}" if place else "it needs no data"
    return _report(spec, "air", done)


async def _prepare_theirs(args: MlgymArgs, root: Path, key: str, watcher: Progress) -> Preparation:
    spec = load_task(root, key)
    done = []
    for dataset in spec.datasets:
        generator = find_generator(root, root / dataset.data_path) if dataset.command else None
        if generator is None:
            continue
        watcher.phase(f"running {HELPERS}/{SCRIPT} in a copy")
        backend = make_backend(args.sandbox, args.python, warm_python=False, runtime=args.container_runtime)
        try:
            await make(generator, backend)
        finally:
            await backend.close()
        done.append(f"{HELPERS}/{SCRIPT} was run in a copy; its files are in {generator.place()}")
    if not done and any(dataset.missing for dataset in spec.datasets):
        problem = next(dataset.missing for dataset in spec.datasets if dataset.missing)
        raise AirError(f"The checkout has no script that makes the data of {key}.", problem)
    return _report(load_task(root, key), "checkout", "; ".join(done) or "nothing was missing")


def _report(spec: TaskSpec, source: str, done: str) -> Preparation:
    files = [name for name in spec.workspace_files() if name.startswith("data/")]
    shown = tuple(name for name in files if name in spec.visible_files())
    hidden = tuple(name for name in files if name not in shown)
    if spec.answers is not None and spec.answers.is_dir():
        hidden += tuple(f"answers/{path.name}" for path in sorted(spec.answers.iterdir()))
    return Preparation(spec.key, source, done, shown, hidden, spec.problems)


def as_json(found: Preparation) -> dict[str, Any]:
    return asdict(found)


def format_preparation(found: Preparation) -> str:
    lines = [f"{found.task} ({found.source}): {found.done}."]
    lines += [f"agents see: {', '.join(found.shown)}"] if found.shown else []
    lines += [f"hidden from them: {', '.join(found.hidden)}"] if found.hidden else []
    lines += [f"problem: {problem}" for problem in found.problems]
    return "\n".join(lines)
