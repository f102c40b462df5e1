"""The questions of a config, and which split each is in.

A data set string is `path,config,split[:slice]`; several are joined by `;`. `A | B` is the first of both that is at
hand, and `generated` (all of it, or `generated,,train` and `generated,,test`) always is: whoever falls back on it is
told so, and its curves have "generated" in their names. No question is in two splits.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from airloop.envs.rows import GENERATED, anchored_source, parse_slice, parse_source, read_rows
from airloop.errors import AirError
from airloop_envs.musique.generated import generated_questions
from airloop_envs.musique.questions import Question, read_question
from airloop_envs.musique.scores import normalise

log = logging.getLogger("airloop.envs.musique.library")  # among the environments': a run shows them

# Of the generated questions, as they are split by default: known without making them.
GENERATED_COUNTS = {"train": 167, "eval": 33, "test": 40}


class Library:
    def __init__(self, datasets: str, test_datasets: str | None, held_out_share: float, seed: int) -> None:
        self.datasets = datasets
        self.test_datasets = test_datasets
        self.share = held_out_share
        self.seed = seed
        self._splits: dict[str, list[Question]] = {}
        self._by_id: dict[str, Question] = {}

    def split(self, name: str) -> Sequence[Question]:
        """In an order that is shuffled by the seed: never by hops, whatever the file's order is."""
        if not self._splits:
            self._splits = self._load()
            self._by_id = {q.id: q for questions in self._splits.values() for q in questions}
        return self._splits.get(name, [])

    def question(self, id: str) -> Question:
        self.split("train")
        return self._by_id[id]

    def _load(self) -> dict[str, list[Question]]:
        rows = load(self.datasets)
        test = list(load(self.test_datasets)) if self.test_datasets else None
        if test is not None:
            known = {q.id for q in test} | {normalise(q.text) for q in test}
            ours = [q for q in rows if q.id not in known and normalise(q.text) not in known]
            if not ours:
                raise AirError(
                    f"Every question of datasets = {self.datasets!r} is in test_datasets too, so none is left to "
                    "train on.",
                    "give two different sets, or leave test_datasets out: then a share is held out for it.",
                )
            if len(ours) < len(rows):
                log.warning("%d questions are in test_datasets too: not trained on", len(rows) - len(ours))
            rows = ours
        splits: dict[str, list[Question]] = {"train": [], "eval": [], "test": test or []}
        for question in rows:
            splits[home(question.id, self.share, test is None)].append(question)
        return {
            name: sorted(questions, key=lambda q: _place(f"order/{self.seed}/{q.id}"))
            for name, questions in splits.items()
        }


def home(id: str, share: float, with_test: bool) -> str:
    """The split of a question, by a hash of its id: it does not move when other rows come or go."""
    place = _place(f"split/{id}")
    if place < share:
        return "eval"
    return "test" if with_test and place < 2 * share else "train"


def _place(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


@cache
def load(datasets: str) -> Sequence[Question]:
    """The questions of a data set string, each once. Kept: a config's environments are made more than once."""
    found: dict[str, Question] = {}
    for part in datasets.split(";"):
        if not part.strip():
            raise AirError(
                f"The data set string {datasets!r} has an empty part.",
                'write "path,config,split[:slice];path2,…", without a ; too many.',
            )
        for question in _first_at_hand([choice.strip() for choice in part.split("|")]):
            found.setdefault(question.id, question)
    if not found:
        raise AirError(f"There is no answerable question in {datasets!r}.", "give another split or a longer slice.")
    return tuple(found.values())


def anchored_sources(datasets: str, folders: Sequence[Path]) -> str:
    """The data set string with every local path in it seen from anywhere."""
    return re.sub(r"[^;|\s][^;|]*", lambda part: anchored_source(part[0], folders), datasets)


def _first_at_hand(choices: Sequence[str]) -> Sequence[Question]:
    """Only what is not there is passed over: data that are there and cannot be read are an error."""
    for choice, other in zip(choices, [*choices[1:], None], strict=True):
        try:
            return _read(choice)
        except AirError as error:
            if other is None or not isinstance(error, NotAtHand):
                raise
            log.warning("%s Taking %r instead; to get the data: %s", error.problem, other, error.fix)
    raise AssertionError("a string has at least one choice")


class NotAtHand(AirError):
    """Of a well-written name: neither a local file or directory, nor given by the hub."""


def _read(source: str) -> Sequence[Question]:
    named = parse_source(source)
    split, part = parse_slice(named.split) if named.split else ("", slice(None))
    if named.path == GENERATED:
        return [replace(q, family=f"{GENERATED}-{q.family}") for q in generated_questions(split)[part]]
    try:
        rows = read_rows(source)
    except AirError as error:
        if Path(named.path).expanduser().exists():
            raise
        raise NotAtHand(error.problem, error.fix) from error
    read = (read_question(row, f"{source}, row {number}") for number, row in enumerate(rows, 1))
    return [question for question in read if question is not None]
