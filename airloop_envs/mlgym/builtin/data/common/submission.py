"""Reads a CSV submission strictly: what cannot be scored fairly is refused with the reason."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from verdict import Invalid

Value = TypeVar("Value")


def read_answers(id_column: str, value_column: str) -> dict[str, dict[str, str]]:
    """The answers of each half, by id: `validate` shows the score on one half, the other is the final score."""
    halves: dict[str, dict[str, str]] = {}
    with Path("answers/answers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            halves.setdefault(row["half"], {})[row[id_column]] = row[value_column]
    return halves


def all_ids(halves: dict[str, dict[str, str]]) -> set[str]:
    return {key for answers in halves.values() for key in answers}


def read_submission(
    path: str, id_column: str, value_column: str, ids: set[str], value: Callable[[str], Value]
) -> dict[str, Value]:
    """The submitted value of every id. `value` turns a cell's text into one, or raises ValueError."""
    rows = _rows(path, [id_column, value_column])
    found: dict[str, Value] = {}
    for line, row in enumerate(rows, start=2):
        if len(row) != 2:
            raise Invalid(f"{path}, line {line}: it has {len(row)} cells, it must have 2.")
        key, text = row[0].strip(), row[1].strip()
        if key not in ids:
            raise Invalid(f"{path}, line {line}: {id_column} {key!r:.40} is not in the test rows.")
        if key in found:
            raise Invalid(f"{path}, line {line}: {id_column} {key} is there twice.")
        try:
            found[key] = value(text)
        except ValueError as error:
            raise Invalid(f"{path}, line {line}: {value_column} is {text!r:.40}; {error}") from None
    if missing := ids - found.keys():
        raise Invalid(f"{path} has {len(found)} of {len(ids)} rows; {id_column} {min(missing, key=int)} is missing.")
    return found


def _rows(path: str, columns: list[str]) -> list[list[str]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path} cannot be read: {error}") from None
    if [name.strip() for name in header] != columns:
        raise Invalid(f"{path} has the columns {','.join(header)!r:.80}; they must be {','.join(columns)}.")
    return rows
