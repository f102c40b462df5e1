"""Reading any checkout of MLGym as it is: every task in it, and why one cannot be run.

A task never hides another: what is wrong with one (a YAML that cannot be parsed, data that is not there, a
metric nobody knows) is in that task's `problems`, each a sentence with the way out. All paths are made
absolute here, once, so nothing depends on the working directory afterwards.
"""

from __future__ import annotations

import difflib
import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from airloop.errors import AirError
from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.datasets import is_pointer, pull, read_dataset
from airloop_envs.mlgym.fields import Fields, read_mapping, sentence
from airloop_envs.mlgym.leaks import inspect_task
from airloop_envs.mlgym.paths import ROOT_VARIABLE, in_sight, strays, within
from airloop_envs.mlgym.spec import ENTRY_POINTS, Dataset, EntryPoint, TaskSpec, Yardstick

TASKS = "configs/tasks"
DEFAULT_TIMEOUT = 3600.0
NO_YARDSTICK = Yardstick(metric="", direction="up", baseline=None, reference=None)


# --- finding ----------------------------------------------------------------------------------------------


def find_root(mlgym_root: str | None = None) -> Path | None:
    """The checkout that the argument names, else the one AIR_MLGYM_ROOT names; None if neither says anything."""
    said = mlgym_root or os.environ.get(ROOT_VARIABLE)
    if not said:
        return None
    where = f"mlgym_root = {said!r}" if mlgym_root else f"{ROOT_VARIABLE}={said}"
    root = Path(said).expanduser().absolute()
    if _is_checkout(root):
        return root.resolve()
    if not root.is_dir():
        raise AirError(
            f"{where}: there is no directory {root}.",
            f"name the directory of an MLGym checkout: the one that holds {TASKS}/.",
        )
    near = [path for path in (*root.parents[:3], *sorted(root.iterdir())) if path.is_dir() and _is_checkout(path)]
    hint = f"write {near[0]}." if near else f"name the directory of an MLGym checkout: the one that holds {TASKS}/."
    raise AirError(f"{where} is no MLGym checkout: there is no {TASKS}/*.yaml in {root}.", hint)


def _is_checkout(path: Path) -> bool:
    return (path / TASKS).is_dir() and bool(_task_files(path))


def _task_files(root: Path) -> dict[str, Path]:
    """Key and file of every task; a file name that occurs twice is told apart by its folder."""
    top = root / TASKS
    files = [file for file in top.rglob("*.yaml") if not any(p.startswith(".") for p in file.relative_to(top).parts)]
    stems = [file.stem for file in files]
    keys = (f.stem if stems.count(f.stem) == 1 else f.relative_to(top).with_suffix("").as_posix() for f in files)
    return dict(sorted(zip(keys, files, strict=True)))


def load_checkout(root: Path) -> list[TaskSpec]:
    """Every task, runnable or not, ordered by key."""
    root = root.resolve()
    return [load_file(root, key, file) for key, file in _task_files(root).items()]


def load_task(root: Path, name: str, overrides: metrics.Overrides | None = None) -> TaskSpec:
    """By file name ("titanic", "titanic.yaml", "tasks/titanic.yaml") or by the id in the YAML."""
    root = root.resolve()
    files = _task_files(root)
    key = PurePosixPath(name.strip()).as_posix().removesuffix(".yaml")
    for prefix in ("configs/", "tasks/"):
        key = key.removeprefix(prefix)
    if key not in files:
        ids = {other: _id_of(root, file, other) for other, file in files.items()}
        same = [other for other, task_id in ids.items() if task_id == name.strip()]
        if len(same) != 1:
            raise _not_found(root, name, key, ids, same)
        key = same[0]
    return load_file(root, key, files[key], overrides)


def _id_of(root: Path, file: Path, key: str) -> str:
    if any(strays(root, file)):
        return key
    try:
        return str(read_mapping(file)[0].get("id") or key)
    except AirError:
        return key


def _not_found(root: Path, name: str, key: str, ids: Mapping[str, str], same: list[str]) -> AirError:
    if same:
        return AirError(f"Several tasks have the id {name!r}.", f"name one by its file: {', '.join(same)}.")
    known = {other.casefold(): other for other in (*ids.values(), *ids)}
    near = difflib.get_close_matches(key.casefold(), known, n=3)
    hint = f"did you mean {' or '.join(known[n] for n in near)}? " if near else ""
    return AirError(f"There is no task {name!r} in {root / TASKS}.", f"{hint}Known: {', '.join(ids)}.")


# --- one task -----------------------------------------------------------------------------------------------

KEYS = frozenset(
    {"id", "name", "description", "dataset_configs", "task_entrypoint", "training_timeout", "use_generic_conda",
     "requirements_path", "benchmark_name", "starter_code", "baseline_paths", "baseline_scores", "sample_submission",
     "evaluation_paths", "evaluation_read_only", "secret_files", "memory_path", "air"}
)  # fmt: skip


def load_file(root: Path, key: str, file: Path, overrides: metrics.Overrides | None = None) -> TaskSpec:
    """The task of one YAML, with everything that was found wrong about it. Raises only for a mistake in
    `overrides`."""
    if any(strays(root, file)):
        return _unreadable(root, key, f"{file} is a link out of the checkout, to {file.resolve()}; copy it there.")
    try:
        data, notes = read_mapping(file)
    except AirError as error:
        return _unreadable(root, key, sentence(error))
    try:
        return _load(root, key, Fields(data, file.name, [], notes), overrides)
    except OSError as error:
        return _unreadable(root, key, f"{error.filename} cannot be read: {error.strerror}; correct its rights.")


def _unreadable(root: Path, key: str, why: str) -> TaskSpec:
    return TaskSpec(
        key=key, id=key, name=key, description="", root=root, entry_point="CSVSubmissionTasks",
        training_timeout=DEFAULT_TIMEOUT, starter_code=(), evaluation_paths=(), baseline_paths=(), datasets=(),
        yardstick=NO_YARDSTICK, problems=(why,),
    )  # fmt: skip


def _load(root: Path, key: str, fields: Fields, overrides: metrics.Overrides | None) -> TaskSpec:
    fields.warn_unknown(KEYS)
    task = _with_yardstick(_read_task(root, key, fields), fields, overrides)
    _check_evaluation(task, fields)
    _check_place(task, fields)
    found = inspect_task(task)
    return replace(
        task,
        exposed=found.exposed,
        warnings=(*fields.warnings, *found.warnings),
        problems=tuple(dict.fromkeys((*fields.problems, *found.problems))),
    )


def _read_task(root: Path, key: str, fields: Fields) -> TaskSpec:
    task_id = fields.text("id", key)
    datasets = [read_dataset(root, name, fields) for name in fields.strings("dataset_configs")]
    there = tuple(dataset for dataset in datasets if dataset)
    known = metrics.known_task(key, task_id)
    made = [name for dataset in there for name in dataset.secret]
    secret = dict.fromkeys((*fields.strings("secret_files"), *(known.secret if known else ()), *made))
    return TaskSpec(
        key=key,
        id=task_id,
        name=fields.text("name", key),
        description=_describe(fields, there),
        root=root,
        entry_point=_entry_point(fields),
        training_timeout=fields.seconds("training_timeout", DEFAULT_TIMEOUT),
        starter_code=_starter_code(root, fields),
        evaluation_paths=tuple(map(_plain, fields.strings("evaluation_paths"))) or ("evaluate.py",),
        baseline_paths=tuple(map(_plain, fields.strings("baseline_paths"))),
        datasets=there,
        yardstick=NO_YARDSTICK,
        baseline_scores=fields.scores("baseline_scores"),
        sample_submission=_optional_file(root, "sample_submission", fields),
        secret_files=tuple(secret),
        evaluation_read_only=fields.flag("evaluation_read_only", False),
        requirements=_requirements(root, fields),
    )


def _plain(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _entry_point(fields: Fields) -> EntryPoint:
    said = fields.text("task_entrypoint", ENTRY_POINTS[0])
    for name in ENTRY_POINTS:
        if name == said:
            return name
    near = difflib.get_close_matches(said, ENTRY_POINTS, n=1, cutoff=0.4)
    hint = f"write {near[0]}" if near else f"write one of {', '.join(ENTRY_POINTS)}"
    fields.problems.append(f"{fields.file}: task_entrypoint {said!r} is not known; {hint}.")
    return ENTRY_POINTS[0]


def _describe(fields: Fields, datasets: Sequence[Dataset]) -> str:
    """The description with {dataset_docs} filled in. Other braces stay, unless the text is a template in which
    they are doubled, as MLGym itself would need them."""
    text = fields.text("description")
    if not text.strip():
        fields.problems.append(f"{fields.file} has no description: the agent would not know what to do; write one.")
    docs = "".join(f"{dataset.name.upper()}:\n{dataset.description}\n\n" for dataset in datasets)
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        return text.replace("{dataset_docs}", docs)
    if any(part[1:] not in ((None, None, None), ("dataset_docs", "", None)) for part in parts):
        return text.replace("{dataset_docs}", docs)
    return "".join(literal + (docs if name else "") for literal, name, _, _ in parts)


def _starter_code(root: Path, fields: Fields) -> tuple[Path, ...]:
    named = [within(root, name, "starter_code", fields) for name in fields.strings("starter_code")]
    paths = [path for path in named if path]
    for path in paths:
        if not path.exists():
            fields.problems.append(
                f"starter_code: {path} is not there; restore it in the checkout (git checkout, git lfs pull) or, if "
                "the task's data is not shipped, get it from where its data set's description says."
            )
        elif path.is_file() and is_pointer(path):
            fields.problems.append(pull(path, root))
    return tuple(path for path in paths if path.exists())


def _optional_file(root: Path, key: str, fields: Fields) -> Path | None:
    name = fields.text(key)
    path = within(root, name, key, fields) if name else None
    if path and not path.is_file():
        fields.warnings.append(f"{fields.file}: {key} names {path}, which is not there.")
        return None
    return path


def _requirements(root: Path, fields: Fields) -> Path | None:
    path = _optional_file(root, "requirements_path", fields)
    if path is None and not fields.flag("use_generic_conda", True):
        fields.problems.append(
            f"{fields.file}: use_generic_conda is false, so the task needs its own packages, but requirements_path "
            "names no file that is there; write one, or use_generic_conda: true."
        )
    return path


# --- scores -------------------------------------------------------------------------------------------------


def _with_yardstick(task: TaskSpec, fields: Fields, overrides: metrics.Overrides | None) -> TaskSpec:
    metrics.override_for(overrides, task.key, task.id)  # the user's own mistake is not the task's problem
    try:
        declared = metrics.read_override(fields.data.get("air") or {}, f"{fields.file}: air")
        stick = metrics.yardstick(task.key, task.id, task.baseline_scores, overrides, declared)
    except AirError as error:
        fields.problems.append(sentence(error))
        return task
    registered = metrics.known_metric(stick.metric)
    if registered and registered.direction != stick.direction:
        fields.warnings.append(
            f"{stick.metric} counts as better when it goes {stick.direction}, against its usual direction, because "
            "the config or the task's YAML says so."
        )
    if stick.baseline is not None and stick.reference is not None and metrics.no_headroom(stick, stick.baseline):
        fields.warnings.append(f'{metrics.no_headroom(stick, stick.baseline)} The reward "headroom" cannot be given.')
    return replace(task, yardstick=stick)


def _check_place(task: TaskSpec, fields: Fields) -> None:
    """Whatever is hidden in the workspace must not be read where it comes from."""
    places = (task.root, *(dataset.directory for dataset in task.datasets if dataset.directory))
    for place in dict.fromkeys(place for place in places if in_sight(place)):
        fields.problems.append(
            f"{place} lies where every sandbox shows this machine's files as they are: agents could read the answers "
            "there. Move it out of /usr."
        )


def _check_evaluation(task: TaskSpec, fields: Fields) -> None:
    """It can be scored, and there is or can be a baseline to compare with."""
    files = task.workspace_files()
    script = task.evaluation_paths[0]
    if script not in files:
        near = [name for name in files if PurePosixPath(name).name == PurePosixPath(script).name]
        hint = f"write evaluation_paths: [{near[0]}]" if near else "add it to starter_code"
        fields.problems.append(f"The evaluation script {script} is not in the workspace; {hint}.")
    if task.yardstick.baseline is not None or not task.yardstick.metric:
        return
    # Code that the evaluation imports is its own baseline, as it is before the agent touches it.
    if task.entry_point == "PythonSubmissionTasks" or any(path in files for path in task.baseline_paths[:1]):
        return
    why = (
        f"its baseline script {task.baseline_paths[0]} is not in the workspace"
        if task.baseline_paths
        else ("it has no baseline_paths to measure it with")
    )
    fields.problems.append(
        f"Task {task.key} has no baseline {task.yardstick.metric}, and {why}; say it: "
        f"args = {{ metrics = {{ {task.key} = {{ baseline = 0.5 }} }} }} with the right number."
    )
