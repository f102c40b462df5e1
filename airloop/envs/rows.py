"""Rows of a data set, from wherever they lie: a jsonl(.gz) file, a directory, or the hub.

A data set is named `path[,config[,split[:slice]]]`, for instance `openai/gsm8k,main,train[:256]`; `path` is a file, a
directory or a hub id, and a local path comes first. A file is one split by itself: there config and the split's name
are only labels, the slice counts. Directories and hub ids are read by the library `datasets`, so what holds on the
hub (configs named in README.md, splits named by files) holds in a directory too. Nothing is shuffled here.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.envs.paths import existing
from airloop.errors import AirError
from airloop.extras import check_extra
from airloop.files import parse_json
from airloop.os_errors import refusal

Row = dict[str, Any]

FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_SECONDS = 10.0  # for the hub's first answer
SPLIT = re.compile(r"\s*([\w.-]+)\s*(?:\[\s*(-?\d*)\s*:\s*(-?\d*)\s*\])?\s*")
GENERATED = "generated"  # no data set: rows that an environment makes itself
EXAMPLE = "openai/gsm8k,main,train[:256]"


class NoSplit(AirError):
    """The data set is there, and has no split of that name."""


@dataclass(frozen=True)
class Source:
    """What a data set string says; empty where it says nothing."""

    path: str
    config: str = ""
    split: str = ""


def parse_source(text: str) -> Source:
    parts = [part.strip() for part in text.split(",")]
    if not parts[0] or len(parts) > 3:
        raise AirError(
            f"The data set {text!r} is not of the form path,config,split[:slice].",
            f"write it like {EXAMPLE!r}; config and split may be left out.",
        )
    return Source(*parts)


def anchored_source(text: str, folders: Sequence[Path]) -> str:
    """The data set string with the path of a local file or directory seen from anywhere; a hub id as it is."""
    path = text.partition(",")[0].strip()
    found = existing(path, folders) if path != GENERATED else path
    if found == path and _is_local(path):  # not there: the error says where it should be
        found = str(folders[0].absolute() / Path(path).expanduser())
    return text.replace(path, found, 1)


def _is_local(path: str) -> bool:
    """Whether it can be nothing else, there or not."""
    return path.endswith(FILES) or path.startswith(("/", "./", "../", "~"))


def parse_slice(split: str) -> tuple[str, slice]:
    """`train[:256]` → ("train", slice(None, 256)); `train` → all of it. Negative places count from the end."""
    found = SPLIT.fullmatch(split)
    if found is None:
        raise AirError(
            f"The split {split!r} cannot be read.",
            "write its name, and in brackets which rows by number: train, train[:256], train[256:512] or train[-100:].",
        )
    start, stop = (int(place) if place else None for place in (found[2], found[3]))
    return found[1], slice(start, stop)


def read_rows(source: str, split: str | None = None) -> Sequence[Row]:
    """The rows of a data set string, in their order, as plain dictionaries.

    `split` (`train` or `train[:256]`) says which split where the string names none. AirError says what is missing
    and how to get it; a row that is no JSON object is told by its line.
    """
    named = parse_source(source)
    if named.split and split:
        raise AirError(
            f"The data set {source!r} names its split itself, and {split!r} was asked for.",
            f"take one of them away, for instance {f'{named.path},{named.config}'.rstrip(',')!r}.",
        )
    wanted = named.split or split
    name, part = parse_slice(wanted) if wanted else ("", slice(None))
    path = Path(named.path).expanduser()
    if path.is_file():
        return _of_file(path, part)
    if path.is_dir():
        inner = path / named.config
        if named.config and inner.is_dir():
            return _of_directory(inner, "", name, part)
        return _of_directory(path, named.config, name, part)
    if _is_local(named.path) or not HUB_ID.fullmatch(named.path):
        raise AirError(
            f"There is no data at {str(path.absolute())!r}, and {named.path!r} is not the form of a hub id.",
            f"give a file ({', '.join(FILES)}), a directory, or a hub id like {EXAMPLE!r}.",
        )
    return _of_hub(named, name, part)


# --- files --------------------------------------------------------------------------------------------------


def _of_file(path: Path, part: slice) -> list[Row]:
    if not path.name.endswith(FILES):
        raise AirError(
            f"{path} is none of the files that can be read: {', '.join(FILES)}.",
            "turn it into one JSON object per line, or give the directory it lies in (parquet and CSV are read there).",
        )
    try:
        held = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
        text = held.decode("utf-8-sig")  # Excel and others write a mark of three bytes first
    except OSError as error:
        if error.errno is None:  # gzip's own
            raise AirError(f"{path} cannot be read: {error}.", "fetch the file again; it may be cut off.") from error
        raise refusal(error, "read", str(path)) from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise AirError(f"{path} cannot be read: {error}.", "fetch the file again; it may be cut off.") from error
    if ".jsonl" not in path.suffixes and text.lstrip().startswith("["):
        rows = _json(text, f"{path}")
        return [_object(row, f"{path}, entry {i + 1}") for i, row in enumerate(rows)][part]
    # Not splitlines(): a string in JSON may hold U+2028 and its like as they are.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_object(_json(line, f"{path}, line {n}"), f"{path}, line {n}") for n, line in lines[part]]


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise AirError(f"{where} is not JSON: {error}.", "write one JSON object per line.") from None


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise AirError(f"{where} is no JSON object but {json.dumps(row)[:60]}.", "write one JSON object per line.")
    return row


# --- directories and the hub ----------------------------------------------------------------------------------


def _of_directory(path: Path, config: str, split: str, part: slice) -> list[Row]:
    fix = "a directory holds files such as train.jsonl and test.parquet, or a subdirectory of them for each config."
    return _load(str(path), config, split, part, fix)


def _of_hub(named: Source, split: str, part: slice) -> list[Row]:
    """What is in this machine's cache is used as it is: a run must not change because the hub has."""
    from huggingface_hub import snapshot_download

    fix = (
        f"fetch it once with `hf download --repo-type dataset {named.path}` (HF_HOME says where to; a mirror is set "
        "with HF_ENDPOINT), or give a directory or a jsonl(.gz) file with its rows."
    )
    try:
        cached = snapshot_download(named.path, repo_type="dataset", local_files_only=True)
    except Exception:  # not there at all
        cached = ""
    if cached:
        try:
            return _load(cached, named.config, split, part, fix, named.path)
        except AirError:
            _ask_hub(named.path, fix)  # the cache may hold other configs only
    else:
        _ask_hub(named.path, fix)
    return _load(named.path, named.config, split, part, fix)


def _ask_hub(name: str, fix: str) -> None:
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name, timeout=HUB_SECONDS)
    except Exception as error:  # unreachable, offline, unknown, gated: the library's sentence says which
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise AirError(
            f"The data set {name} is not on this machine, and the hub did not give it: {reason}", fix
        ) from error


def _load(path: str, config: str, split: str, part: slice, fix: str, title: str = "") -> list[Row]:
    check_extra("rows", f"The data set {title or path}, which is no single file,")
    import datasets

    title = title or path
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(path, config or None)
    except Exception as error:  # the library raises a dozen kinds; each has its sentence
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise AirError(f"The data set {title!r} cannot be loaded: {reason}", fix) from error
    known = list(loaded)
    if not split and len(known) == 1:
        split = known[0]
    if split not in known:
        near = difflib.get_close_matches(split, known, n=1)
        raise NoSplit(
            f"The data set {title!r} has no split {split!r}."
            if split
            else f"The data set {title!r} has several splits.",
            f"{f'did you mean {near[0]!r}? ' if near else ''}It has: {', '.join(known)}; "
            f"write {f'{title},{config},{(near or known)[0]}'!r}.",
        )
    rows = loaded[split]
    return list(rows.select(range(*part.indices(len(rows)))).to_list())
