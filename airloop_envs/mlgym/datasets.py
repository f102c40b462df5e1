"""A task's data sets: a directory of the checkout, or a data set of the hub that lies in this machine's cache.

What is not here is said with the ways to get it; nothing is fetched, because a task is listed far more often
than it is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airloop.errors import AirError
from airloop.text.patterns import MOST_REPEATS, is_quick
from airloop_envs.mlgym.fields import Fields, read_mapping, sentence, short
from airloop_envs.mlgym.generator import HELPERS, command, find_generator, how_to_make
from airloop_envs.mlgym.leaks import fits
from airloop_envs.mlgym.paths import ROOT_VARIABLE, within
from airloop_envs.mlgym.spec import Dataset, Split

LFS_POINTER = b"version https://git-lfs"
KEYS = frozenset({"name", "description", "data_path", "is_local", "train_split", "valid_split", "test_split"})


def read_dataset(root: Path, name: str, task: Fields) -> Dataset | None:
    file = within(root, f"configs/{name}", "dataset_configs", task)
    if file is None:
        return None
    try:
        data, notes = read_mapping(file)
    except AirError as error:
        task.problems.append(f"dataset_configs: {sentence(error)}")
        return None
    task.warnings.extend(notes)
    fields = Fields(data, file.name if file.name != task.file else name, task.problems, task.warnings)
    fields.warn_unknown(KEYS)
    data_path, is_local = fields.text("data_path"), fields.flag("is_local", False)
    if not data_path:
        task.problems.append(f"{fields.file} has no data_path; write a directory of the checkout or a hub id.")
        return None
    splits = tuple(split for key in ("train", "valid", "test") if (split := _read_split(f"{key}_split", fields)))
    place = within(root, data_path, "data_path", fields)
    if place is None:
        return None
    if not is_local and place.is_dir():
        task.warnings.append(f"{fields.file}: data_path is a directory of the checkout, read as is_local: true.")
        is_local = True
    found = Dataset(fields.text("name", file.stem), fields.text("description"), data_path, is_local, None, splits)
    if is_local:
        found = _local(found, place, root, fields, task.file.removesuffix(".yaml"))
    else:
        directory = hub_directory(data_path)
        found = replace(found, directory=directory, missing="" if directory else _how_to_get(data_path))
    if found.missing:
        task.problems.append(found.missing)
    return found


def _local(dataset: Dataset, place: Path, root: Path, fields: Fields, key: str) -> Dataset:
    """With its directory: the checkout's, or what the checkout's own script has made in a copy."""
    generator = find_generator(root, place)
    made = generator.place() if generator is not None and not _files(place) else None
    directory = made if made is not None and made.is_dir() else place
    files = _files(directory)
    missing = _local_trouble(files, directory, root, dataset.splits, fields)
    secret: tuple[str, ...] = ()
    if generator is not None:
        missing = missing if files else how_to_make(generator, key, root)
        secret = (HELPERS, *_undeclared(files, directory, dataset.splits))
    return replace(
        dataset,
        directory=directory if directory.is_dir() else None,
        missing=missing,
        command=command(key, root) if generator is not None and not files else "",
        secret=secret,
    )


def _undeclared(files: Sequence[Path], directory: Path, splits: Sequence[Split]) -> list[str]:
    """Of what a script makes, what no split declares is the grader's: rows are split into what agents get and answers.
    Where no split is declared nobody can tell, and answers in sight are told of as everywhere (leaks.py)."""
    patterns = [split.file_regex for split in splits if split.file_regex]
    hidden = [path for path in files if not any(_in_split(pattern, path, directory) for pattern in patterns)]
    return [path.relative_to(directory).as_posix() for path in hidden] if patterns else []


def _read_split(key: str, fields: Fields) -> Split | None:
    value = fields.data.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        fields.problems.append(f"{fields.file}: {key} is {short(value)}; write {{name: …, file_regex: …}}.")
        return None
    inner = Fields(value, f"{fields.file}: {key}", fields.problems, fields.warnings)
    pattern = inner.text("file_regex")
    if not is_quick(pattern):
        fields.problems.append(
            f"{inner.file}: file_regex {pattern[:80]!r} could take for ever to match; write one with at most "
            f"{MOST_REPEATS} repetitions (* + {{}}), none of them of a group."
        )
        pattern = ""
    return Split(inner.text("name", key.removesuffix("_split")), pattern)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []


def _local_trouble(files: Sequence[Path], directory: Path, root: Path, splits: Sequence[Split], fields: Fields) -> str:
    if not files:
        wanted = ", ".join(f"{split.name} ({split.file_regex})" for split in splits if split.file_regex)
        return (
            f"The data {directory} is not there{f' (wanted: {wanted})' if wanted else ''}. MLGym does not ship all of "
            f"its data: put the files into that directory, or restore them with `git -C {root} checkout -- data`, or "
            f"set mlgym_root (or {ROOT_VARIABLE}) to a checkout that has them."
        )
    if pointers := [path for path in files[:1000] if is_pointer(path)]:
        return pull(pointers[0], root)
    for split in splits:
        if split.file_regex and not any(_in_split(split.file_regex, path, directory) for path in files):
            fields.warnings.append(
                f"{fields.file}: no file in {directory} fits the split {split.name} ({split.file_regex})."
            )
    return ""


def _in_split(pattern: str, path: Path, directory: Path) -> bool:
    """By its name or its path, which some write from the workspace on: ./data/train*."""
    inner = path.relative_to(directory).as_posix()
    return any(fits(pattern.removeprefix("./"), name) for name in (path.name, inner, f"data/{inner}"))


def is_pointer(path: Path) -> bool:
    if path.stat().st_size > 1024:
        return False
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def pull(path: Path, root: Path) -> str:
    return f"{path} is a git-lfs pointer, not the file itself; fetch it with `git -C {root} lfs pull`."


def hub_directory(repo_id: str) -> Path | None:
    """Where a data set of the hub lies in this machine's cache; nothing is fetched."""
    # Only tasks with data on the hub pay for this import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, repo_type="dataset", local_files_only=True)).resolve()
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _how_to_get(repo_id: str) -> str:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo_id):
        return f"The data {repo_id} is neither a directory of the checkout nor a name on the hub; correct data_path."
    return (
        f"The data {repo_id} is on the hub and not on this machine, and agents have no network. Fetch it once with "
        f"`hf download --repo-type dataset {repo_id}` (HF_HOME says where to), or copy that cache from a machine with "
        "a network."
    )
