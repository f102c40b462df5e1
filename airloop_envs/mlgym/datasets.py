"""A task's data sets: a directory of the checkout, or a data set of the hub that lies in this machine's cache.

What is not here is said with the ways to get it; nothing is fetched, because a task is listed far more often
than it is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from airloop.errors import AirError
from airloop.text.patterns import MOST_REPEATS, is_quick
from airloop_envs.mlgym.fields import Fields, read_mapping, sentence, short
from airloop_envs.mlgym.leaks import fits
from airloop_envs.mlgym.paths import within
from airloop_envs.mlgym.spec import Dataset, Split

ROOT_VARIABLE = "AIR_MLGYM_ROOT"
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
    if is_local:
        directory = place if place.is_dir() else None
        missing = _local_trouble(place, root, splits, fields)
    else:
        directory = hub_directory(data_path)
        missing = "" if directory else _how_to_get(data_path)
    if missing:
        task.problems.append(missing)
    title = fields.text("name", file.stem)
    return Dataset(title, fields.text("description"), data_path, is_local, directory, splits, missing)


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


def _local_trouble(directory: Path, root: Path, splits: Sequence[Split], fields: Fields) -> str:
    files = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
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
    return fits(pattern, path.name) or fits(pattern, path.relative_to(directory).as_posix())


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
