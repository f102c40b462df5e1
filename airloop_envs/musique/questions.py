"""A question and its documents, from a row of MuSiQue or HotpotQA as their authors publish them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airloop.errors import AirError

MUSIQUE_ID = re.compile(r"([2-9])hop\d*__")
FIX = (
    "a MuSiQue row has id, question, answer, answer_aliases and paragraphs [{idx, title, paragraph_text, "
    "is_supporting}]; a HotpotQA row has _id, question, answer, context and supporting_facts."
)


@dataclass(frozen=True, slots=True)
class Document:
    id: int  # what the agent calls it
    title: str
    text: str
    supporting: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of the way to the answer. In `question`, #1 stands for the answer of the first hop, and so on."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    text: str
    answers: tuple[str, ...]  # the answer, then its aliases
    hops: int
    family: str  # the curve it is counted in
    documents: tuple[Document, ...]
    steps: tuple[Hop, ...] = ()  # empty where the data set does not say

    @property
    def supporting(self) -> frozenset[int]:
        return frozenset(document.id for document in self.documents if document.supporting)

    def document(self, id: int) -> Document | None:
        return next((document for document in self.documents if document.id == id), None)


def read_question(row: Mapping[str, Any], where: str) -> Question | None:
    """None for a row that is marked as not answerable: its answer is not in its documents."""
    try:
        question = _hotpot(row) if "supporting_facts" in row else _musique(row)
    except (KeyError, TypeError, ValueError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise AirError(f"{where} is not a question of MuSiQue or HotpotQA: it {what}.", FIX) from error
    if row.get("answerable", True) is False:
        return None
    if not question.answers[0].strip() or not question.supporting:
        missing = "no supporting paragraph" if question.answers[0].strip() else "an empty answer"
        raise AirError(f"{where} ({question.id}) has {missing}: nothing could be scored.", FIX)
    return question


def _musique(row: Mapping[str, Any]) -> Question:
    documents = tuple(
        Document(int(p["idx"]), str(p["title"]), str(p["paragraph_text"]), bool(p["is_supporting"]))
        for p in row["paragraphs"]
    )
    steps = tuple(Hop(_plain(s["question"]), str(s["answer"])) for s in row.get("question_decomposition") or ())
    prefix = MUSIQUE_ID.match(row["id"])
    hops = int(prefix[1]) if prefix else max(1, sum(document.supporting for document in documents))
    answers = tuple(dict.fromkeys([str(row["answer"]), *map(str, row.get("answer_aliases") or ())]))
    return Question(str(row["id"]), str(row["question"]), answers, hops, f"{hops}hop", documents, steps)


def _plain(question: str) -> str:
    """Some hops are written as relations: `#1 >> father`."""
    return " ".join(question.replace(">>", " ").split())


def _hotpot(row: Mapping[str, Any]) -> Question:
    """The file as its authors publish it, where `context` is a list of [title, sentences], or the hub's, where it
    is a table of both. Every question of HotpotQA has two hops; comparisons need no order between them."""
    context, facts = row["context"], row["supporting_facts"]
    pairs = list(zip(context["title"], context["sentences"], strict=True)) if isinstance(context, Mapping) else context
    named = set(facts["title"]) if isinstance(facts, Mapping) else {title for title, _ in facts}
    documents = tuple(
        Document(place, str(title), " ".join(s.strip() for s in sentences), title in named)
        for place, (title, sentences) in enumerate(pairs)
    )
    id = str(row["_id"] if "_id" in row else row["id"])
    return Question(id, str(row["question"]), (str(row["answer"]),), 2, f"hotpotqa-{row['type']}", documents)


def arrange(question: Question, noise_rate: float, seed: int) -> Question:
    """The question as its episodes see it: each document that supports nothing is kept with probability
    `noise_rate`, the rest is shuffled and numbered from 1. The same for all episodes of the question."""
    rng = random.Random(f"{seed}/{question.id}")
    kept = [document for document in question.documents if document.supporting or rng.random() < noise_rate]
    rng.shuffle(kept)
    return replace(question, documents=tuple(replace(document, id=i) for i, document in enumerate(kept, 1)))
