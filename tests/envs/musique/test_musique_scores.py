"""Scores: normalisation as SQuAD's evaluation defines it, and everything built on it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop_envs.musique.scores import (
    ANSWER,
    BALANCED,
    MIXTURE,
    Outcome,
    exact_match,
    f1,
    measure,
    normalise,
    overlap,
    paid,
)

# Each rule of SQuAD's evaluation in the order it applies them: lower case, no punctuation, no articles, single
# spaces. Punctuation is removed, not replaced, so "twenty-one" is one word; articles go only as whole words.
NORMALISED = [
    ("The Eiffel Tower", "eiffel tower"),
    ("  a  man,  a   plan ", "man plan"),
    ("an apple a day", "apple day"),
    ("theatre", "theatre"),
    ("Another", "another"),
    ("U.S.A.", "usa"),
    ("twenty-one", "twentyone"),
    ("1,000", "1000"),
    ("$3.5", "35"),
    ("O'Brien's", "obriens"),
    ("The", ""),
    ("!?", ""),
    ("new\nline\ttab", "new line tab"),
    ("Łódź", "łódź"),
    ("“quoted”", "“quoted”"),  # only ASCII punctuation is removed
    ("the-the", "thethe"),
]


@pytest.mark.parametrize(("text", "wanted"), NORMALISED)
def test_normalisation_is_that_of_squad(text: str, wanted: str) -> None:
    assert normalise(text) == wanted


@pytest.mark.parametrize(
    ("said", "references", "em", "token_f1"),
    [
        ("the Eiffel Tower!", ["Eiffel Tower"], 1, 1),
        ("Eiffel", ["Eiffel Tower"], 0, 2 / 3),
        ("Paris", ["London", "the paris"], 1, 1),  # best over the aliases
        ("a b b", ["b b c"], 0, 0.8),  # "a" is an article; words count as often as they occur
        ("x", ["y"], 0, 0),
        ("the", ["an"], 1, 1),  # nothing is left of either
        ("", ["x"], 0, 0),
        ("Barack Hussein Obama II", ["Obama", "Barack Obama"], 0, 2 / 3),
    ],
)
def test_exact_match_and_f1_take_the_best_alias(said: str, references: list[str], em: float, token_f1: float) -> None:
    assert exact_match(said, references) == em
    assert f1(said, references) == pytest.approx(token_f1)


def test_overlap_counts_documents_once() -> None:
    assert overlap({1, 2, 3}, {2, 3, 4, 5}) == pytest.approx((0.5, 2 / 3, 4 / 7))
    assert overlap((), {1}) == (0, 0, 0)
    assert overlap({9}, {1}) == (0, 0, 0)


@pytest.mark.parametrize("weights", [MIXTURE, BALANCED, ANSWER])
def test_combinations_are_at_most_one(weights: dict[str, float]) -> None:
    assert math.fsum(weights.values()) == pytest.approx(1)


def test_the_mixture_is_the_published_one() -> None:
    outcome = Outcome("Eiffel", frozenset({1, 2, 3, 4}), frozenset({1}), calls=4, valid_calls=3)
    values = measure(outcome, ["Eiffel Tower"], {1, 2, 9}, hops=3)
    em, token_f1, r, p, c, form = 0, 2 / 3, 2 / 3, 0.5, 1 / 3, 0.5 * 0.75 + 0.5
    wanted = (0.9 * em + 1.0 * token_f1 + 1.0 * r + 0.4 * p + 0.6 * c + 0.1 * form) / 4
    assert values["mixture"] == pytest.approx(wanted)
    assert values["mixture_by_hops"] == pytest.approx(wanted * 1.5)


def test_what_can_be_had_without_an_answer_is_paid_only_with_one() -> None:
    everything = frozenset(range(1, 21))
    cheat = Outcome("no idea", everything, everything, calls=20, valid_calls=20)
    seen = measure(cheat, ["Eiffel Tower"], {1, 2}, hops=2)
    assert seen["recall"] == seen["citation_recall"] == seen["format"] == 1 and seen["mixture"] > 0.4
    worth = paid(seen, hops=2)
    assert worth["recall"] == worth["citation_recall"] == worth["format"] == 0
    assert worth["mixture"] < 0.05 and worth["balanced"] < 0.1
    right = measure(Outcome("Eiffel Tower", frozenset({1, 2}), frozenset({1, 2}), 3, 3), ["Eiffel Tower"], {1, 2}, 2)
    assert paid(right, 2) == right


ids = st.frozensets(st.integers(0, 20))


@given(
    st.builds(Outcome, st.none() | st.text(), ids, ids, st.integers(0, 5), st.just(0)),
    st.lists(st.text(min_size=1), min_size=1),
    st.frozensets(st.integers(0, 20), min_size=1),
    st.integers(2, 4),
)
def test_every_component_is_finite_and_in_bounds(
    outcome: Outcome, answers: list[str], supporting: frozenset[int], hops: int
) -> None:
    for name, value in measure(outcome, answers, supporting, hops).items():
        assert 0 <= value <= (hops / 2 if name == "mixture_by_hops" else 1) + 1e-9, name
