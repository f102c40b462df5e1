"""Rows in MuSiQue's form about people and places that do not exist, for when no data set is at hand.

They let every command run and every part be tested. They say nothing about MuSiQue: their language is that of a
few templates, and a rule could solve them. So their ids, families and curves all carry the word "generated".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from airloop.errors import AirError
from airloop_envs.musique.questions import Question, read_question

ROWS = 240
DOCUMENTS = 20
SEED = 20251
SPLITS = {"": slice(None), "train": slice(180), "test": slice(180, None)}

STARTS = (
    "Bal",
    "Cor",
    "Dra",
    "Els",
    "Fen",
    "Gor",
    "Hal",
    "Ist",
    "Jor",
    "Kel",
    "Lum",
    "Mar",
    "Nol",
    "Ost",
    "Pel",
    "Ris",
)
MIDDLES = ("a", "e", "i", "o", "u", "ar", "en", "il", "or", "un")
ENDS = ("dan", "ford", "gard", "heim", "lia", "mere", "nor", "port", "stad", "ton", "vik", "wen")
GIVEN = ("Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Henri", "Irma", "Jonas", "Karla", "Leo")
WORKS = ("The Glass Harbour", "Nine Lanterns", "A Field of Salt", "The Second Winter", "Letters to No One", "Low Tide")
FILLERS = (
    "It is mentioned in several guides of the region.",
    "Most visitors come in early autumn.",
    "Older sources spell the name in a different way.",
    "A small museum keeps the records of that time.",
    "The local paper has written about it more than once.",
)

# A chain goes from a work to its author, the author's birthplace, the land it is in, and the land's capital.
# Each link: the question about it, the sentence that answers it, how it is named inside a longer question.
Link = tuple[str, str, str]
LINKS: tuple[Link, ...] = (
    ("Who wrote {0}?", "{0} is a novel by {1}.", "the author of {0}"),
    ("Where was {0} born?", "{0} was born in {1} and worked as a teacher.", "the birthplace of {0}"),
    ("Which country is {0} in?", "{0} is a town in {1}, by a slow river.", "the country of {0}"),
    ("What is the capital of {0}?", "{0} is a country whose capital is {1}.", "the capital of {0}"),
    ("Who founded {0}?", "{0} was founded by {1}.", "the founder of {0}"),
)


def generated_questions(split: str = "") -> list[Question]:
    """All of them, or those of "train" or "test"."""
    if split not in SPLITS:
        raise AirError(f"The generated set has no split {split!r}.", 'write "generated,,train" or "generated,,test".')
    return list(_all()[SPLITS[split]])


@cache
def _all() -> tuple[Question, ...]:
    made = (read_question(row, f"generated row {i}") for i, row in enumerate(generated_rows()))
    return tuple(question for question in made if question is not None)


def generated_rows(rows: int = ROWS) -> list[dict[str, Any]]:
    """The same rows always; the first n of any number are the same too."""
    return [_row(number) for number in range(rows)]


def _row(number: int) -> dict[str, Any]:
    rng = random.Random(SEED + number)
    hops = 2 + number % 3
    names = _chain(_namer(rng))
    start = rng.randrange(len(LINKS) - hops + 1)
    links, path = LINKS[start : start + hops], names[start : start + hops + 1]
    paragraphs = [_paragraph(link, path[i], path[i + 1], rng, True) for i, link in enumerate(links)]
    while len(paragraphs) < DOCUMENTS:
        other = _chain(_namer(rng))
        place = rng.randrange(len(LINKS))
        # Half of them are near misses: the same kind of fact about somebody else.
        link = rng.choice(links) if rng.random() < 0.5 else LINKS[place]
        place = LINKS.index(link)
        paragraphs.append(_paragraph(link, other[place], other[place + 1], rng, False))
    rng.shuffle(paragraphs)
    return {
        "id": f"{hops}hop__generated_{number}",
        "question": _question(links, path[0]),
        "answer": path[-1],
        "answer_aliases": [],
        "answerable": True,
        "paragraphs": [{"idx": i, **paragraph} for i, paragraph in enumerate(paragraphs)],
        "question_decomposition": _decomposition(links, path),
    }


def _namer(rng: random.Random) -> Callable[[], str]:
    return lambda: rng.choice(STARTS) + rng.choice(MIDDLES) + rng.choice(ENDS)


def _chain(name: Callable[[], str]) -> list[str]:
    rng = random.Random(name())
    person, founder = (f"{rng.choice(GIVEN)} {name()}" for _ in range(2))
    return [f"{rng.choice(WORKS)} of {name()}", person, name(), name(), name(), founder]


def _paragraph(link: Link, subject: str, value: str, rng: random.Random, supporting: bool) -> Mapping[str, Any]:
    text = " ".join([link[1].format(subject, value), *rng.sample(FILLERS, 2)])
    return {"title": subject, "paragraph_text": text, "is_supporting": supporting}


def _question(links: Sequence[Link], subject: str) -> str:
    for link in links[:-1]:
        subject = link[2].format(subject)
    return links[-1][0].format(subject)


def _decomposition(links: Sequence[Link], path: Sequence[str]) -> list[dict[str, Any]]:
    subjects = [path[0], *(f"#{i}" for i in range(1, len(links)))]
    return [{"id": i, "question": link[0].format(subjects[i]), "answer": path[i + 1]} for i, link in enumerate(links)]
