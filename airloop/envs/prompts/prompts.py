"""Rows as prompts: what is shown of each, which of its columns functions are given, and which split it is in."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airloop.envs.rows import Row, parse_source
from airloop.envs.splits import SPLITS, TEST_SHARE, hash_of, home, read_with_test
from airloop.errors import AirError
from airloop.text.spelling import misspelt
from airloop.types import Message

log = logging.getLogger(__name__)

MESSAGE = ("role", "content", "name", "tool_call_id")
TAKEN = ("prompts", "completions", "completion_ids")  # by what functions are given besides the columns
# Not given to functions, as TRL does not: what a data set may hold of earlier replies.
LEFT_OUT = ("prompt", "completion")


@dataclass(frozen=True)
class Prompt:
    id: str
    prompt: str | list[dict[str, Any]]  # as the row has it
    columns: Mapping[str, Any]
    where: str  # "row 12 of rows.jsonl"

    @property
    def messages(self) -> tuple[Message, ...]:
        """A text is the user's message: the model's chat template is applied to either."""
        if isinstance(self.prompt, str):
            return (Message(role="user", content=self.prompt),)
        known = ({k: m[k] for k in MESSAGE if m.get(k) is not None} for m in self.prompt)
        return tuple(Message(**message) for message in known)  # type: ignore[typeddict-item]


@dataclass(frozen=True)
class Prompts:
    """All of a data set, by split. `columns` are the names of what functions are given of a row."""

    columns: tuple[str, ...]
    splits: dict[str, list[Prompt]] = field(default_factory=dict)


def load_prompts(dataset: str, test_dataset: str | None, column: str, eval_share: float) -> Prompts:
    rows, test_rows = read_with_test(dataset, test_dataset)
    if not rows:
        raise AirError(f"The data set {dataset!r} has no rows.", "name another, or a longer slice.")
    columns = _columns([*rows, *test_rows], column, dataset)
    test = _read(test_rows, column, columns, test_dataset or dataset)
    held_out = {_hash(prompt) for prompt in test.values()}
    splits: dict[str, list[Prompt]] = {split: [] for split in SPLITS}
    for prompt in _read(rows, column, columns, dataset).values():
        hashed = _hash(prompt)
        if hashed not in held_out:
            splits[home(hashed, eval_share, 0.0 if test else TEST_SHARE)].append(prompt)
    splits["test"] += test.values()
    _fill(splits)
    return Prompts(tuple(columns), splits)


def _fill(splits: dict[str, list[Prompt]]) -> None:
    """Of a few rows perhaps none is held out by its hash alone: then the one that comes nearest to it."""
    train = splits["train"]
    for split, nearest in (("test", max), ("eval", min)):
        if not splits[split] and len(train) > 1:
            chosen = nearest(train, key=lambda prompt: int(_hash(prompt)[-8:], 16))
            splits[split] = [prompt for prompt in train if _hash(prompt) == _hash(chosen)]
            train[:] = [prompt for prompt in train if _hash(prompt) != _hash(chosen)]
    if not train:
        raise AirError("No row is left to train on: all are held out.", "add rows whose prompts are others.")


def _columns(rows: Sequence[Row], column: str, source: str) -> list[str]:
    """Of all rows: one that lacks a column has None there, as in a table."""
    found = list(dict.fromkeys(name for row in rows for name in row))
    if column not in found:
        near = misspelt(column, found)
        raise AirError(
            f"The data set {source!r} has no column {column!r} to take prompts from.",
            f"{f'did you mean {near!r}? ' if near else ''}It has: {', '.join(found)}; name one with prompt = ….",
        )
    if wrong := next((name for name in found if name in TAKEN), None):
        raise AirError(f"The data set {source!r} has a column {wrong!r}, a name that is taken.", "rename the column.")
    unsaid = [name for name in found if any(not _is_json(row.get(name)) for row in rows)]
    if unsaid:
        log.warning(
            "%s: no function is given the columns %s, which an episode's JSON cannot hold", source, ", ".join(unsaid)
        )
    return [name for name in found if name not in (*LEFT_OUT, *unsaid)]


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _read(rows: Sequence[Row], column: str, columns: Sequence[str], source: str) -> dict[str, Prompt]:
    """By id, a hash of all that is used of a row: it has the same name in every slice and file, and counts once."""
    found: dict[str, Prompt] = {}
    name = parse_source(source).path.rpartition("/")[2]
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {name}"
        prompt = check_prompt(row.get(column), column, where)
        given = {key: row.get(key) for key in columns}
        text = json.dumps([prompt, given], sort_keys=True, ensure_ascii=False)
        hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        found.setdefault(hashed, Prompt(hashed, prompt, given, where))
    return found


def _hash(prompt: Prompt) -> str:
    """Of what is asked alone: rows that differ in other columns go to the same split."""
    return hash_of(prompt.prompt if isinstance(prompt.prompt, str) else json.dumps(prompt.prompt, sort_keys=True))


def check_prompt(value: Any, column: str, where: str) -> str | list[dict[str, Any]]:
    """Text, or messages that end with what is to be answered."""
    if isinstance(value, str) and value.strip():
        return value
    what = f"The column {column!r} of {where}"
    if not isinstance(value, list) or not value:
        shown = "empty" if not value else f"a {type(value).__name__}"
        raise AirError(f"{what} is {shown}.", "a prompt is a text, or a list of messages with role and content.")
    for message in value:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise AirError(
                f"{what} has a message without text: {str(message)[:80]}.",
                'write each as {"role": "user", "content": "…"}.',
            )
        if more := [key for key, part in message.items() if part is not None and key not in MESSAGE]:
            raise AirError(f"{what} has a message with {', '.join(more)}.", "leave out all but role and content.")
    if value[-1]["role"] == "assistant":
        raise AirError(f"{what} ends with the assistant's message.", "end it with the message that is to be answered.")
    return value
