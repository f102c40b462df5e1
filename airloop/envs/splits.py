"""Which rows of a data set are trained on and which are held out.

`test` is the data set's own where it has one; `eval`, and `test` where it has none, are taken from the training rows by
a hash of what is asked: a row stays where it is whatever else is in the file, and no question is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from airloop.envs.rows import FILES, NoSplit, Row, parse_source, read_rows

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


def home(hashed: str, eval_share: float, test_share: float) -> str:
    """The split of a question, by its hash."""
    place = int(hashed[-8:], 16) / 16**8
    if place < eval_share:
        return "eval"
    return "test" if place >= 1 - test_share else "train"
