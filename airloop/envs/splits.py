"""Which rows of a data set are trained on and which are held out.

`test` is the data set's own where it has one; `eval`, and `test` where it has none, are taken from the training rows by
a hash of what is asked: a row stays where it is whatever else is in the file, and no question is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from airloop.envs.rows import FILES, NoSplit, Row, parse_source, read_rows
from airloop.errors import AirError

T = TypeVar("T")
SPLITS = ("train", "eval", "test")
TEST_SHARE = 0.1  # of the rows, where no test rows are given


def read_with_test(dataset: str, test_dataset: str | None) -> tuple[Sequence[Row], Sequence[Row]]:
    """The training rows, and the test rows: none where the data set is one file or has no split of that name."""
    source = parse_source(dataset)
    is_file = source.path.endswith(FILES) or Path(source.path).expanduser().is_file()
    rows = read_rows(dataset, None if source.split or is_file else "train")
    if test_dataset:
        return rows, read_rows(test_dataset)
    if is_file:
        return rows, ()
    try:
        return rows, read_rows(f"{source.path},{source.config}", "test")
    except NoSplit:
        return rows, ()


def hash_of(question: str) -> str:
    """Of the words: case and spaces do not make another question."""
    return hashlib.sha256(" ".join(question.lower().split()).encode()).hexdigest()[:10]


def share_out(rows: Mapping[str, T], test: Mapping[str, T], eval_share: float) -> dict[str, dict[str, T]]:
    """Rows by split, each by its hash. Of a few perhaps none is held out by its hash alone: then the one that comes
    nearest to it, so that a row that is added moves no other."""
    splits: dict[str, dict[str, T]] = {split: {} for split in SPLITS}
    for hashed, row in rows.items():
        if hashed not in test:
            splits[home(hashed, eval_share, 0.0 if test else TEST_SHARE)][hashed] = row
    if not splits["train"] and (held := splits["eval"] | splits["test"]):  # the one that was nearest to staying
        chosen = min(held, key=lambda hashed: abs(int(hashed[-8:], 16) / 16**8 - 0.5))
        splits["train"][chosen] = splits["eval"].pop(chosen, None) or splits["test"].pop(chosen)
    splits["test"] |= test
    for split, nearest in (("test", max), ("eval", min)):
        if not splits[split] and len(splits["train"]) > 1:
            chosen = nearest(splits["train"], key=lambda hashed: int(hashed[-8:], 16))
            splits[split][chosen] = splits["train"].pop(chosen)
    if not splits["train"]:
        raise AirError("No row is left to train on: all are held out.", "add rows that are not among the test rows.")
    return splits


def home(hashed: str, eval_share: float, test_share: float) -> str:
    """The split of a question, by its hash."""
    place = int(hashed[-8:], 16) / 16**8
    if place < eval_share:
        return "eval"
    return "test" if place >= 1 - test_share else "train"
