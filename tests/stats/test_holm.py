"""Holm's correction: what it says of known cases, and how often a family of comparisons holds a false finding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.stats.holm import holm, p_value, strictest
from airloop.stats.intervals import student_mean
from airloop.stats.student import student_share
from airloop_lab.factors import Variant
from airloop_lab.hypothesis_report import Compared, Pair


def test_by_hand() -> None:
    found = holm([0.04, 0.01, 0.03, 0.005])
    assert [one.adjusted for one in found] == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert [one.found for one in found] == [False, True, False, True]
    # 0.005 at 0.05/4, 0.01 at 0.05/3; 0.03 fails at 0.05/2, and what follows is judged as it was.
    assert [one.level for one in found] == pytest.approx([0.975, 1 - 0.05 / 3, 0.975, 0.9875])
    assert holm([]) == [] and holm([0.05])[0].found and strictest(10) == pytest.approx(0.995)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12))
def test_what_is_shown_agrees_with_what_is_said(values: list[float]) -> None:
    """An interval of the level excludes zero if and only if p is at most 1 − level."""
    for one in holm(values):
        assert one.found == (one.p <= 1 - one.level + 1e-12) and one.p <= one.adjusted <= 1
        assert not one.found or one.adjusted <= 0.05 + 1e-9


@pytest.mark.parametrize("values", [[0.1, 0.3, 0.2], [0.1, -0.3, 0.2, 0.4, 0.6], [5.0, 5.1, 4.9, 5.2]])
def test_a_p_value_is_that_of_students_t(values: list[float]) -> None:
    mean, n = float(np.mean(values)), len(values)
    t = mean / (np.std(values, ddof=1) / np.sqrt(n))
    wanted = 2 * (1 - student_share(abs(t), n - 1))
    assert p_value(lambda level: student_mean(values, level).low > 0) == pytest.approx(wanted, rel=2e-3)
    assert p_value(lambda level: False) == 1.0


def sweep(rng: np.random.Generator, lines: int, seeds: int, tasks: int) -> list[Compared]:
    """No variant differs from the base. Tasks have their own difficulty, seeds their own luck; all lines share a base,
    so that they err together."""
    difficulty = rng.uniform(0.2, 0.8, tasks)

    def scores() -> np.ndarray:
        luck = rng.normal(0, 0.05, (seeds, 1))
        return rng.binomial(4, np.clip(difficulty + luck, 0, 1), (seeds, tasks)) / 4

    base = scores()
    return [_line(base, scores()) for _ in range(lines)]


def _line(base: np.ndarray, changed: np.ndarray) -> Compared:
    pairs = []
    for seed, (one, two) in enumerate(zip(base, changed, strict=True)):
        by_task = {("e", str(t)): float(gain) for t, gain in enumerate(two - one)}
        pairs.append(Pair(seed, float(one.mean()), float(two.mean()), 0.0, 0.0, by_task, 0.0, 0))
    return Compared(Variant("v"), "reward", 0.95, pairs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lines", "seeds", "tasks"),
    [(4, 5, 16), *(pytest.param(*sizes, marks=pytest.mark.soak) for sizes in ((10, 3, 24), (6, 8, 24)))],
)
def test_a_sweep_of_nothing_has_a_finding_in_at_most_six_of_a_hundred(lines: int, seeds: int, tasks: int) -> None:
    rng = np.random.default_rng(lines * seeds)
    cases, alone, together = 400, 0, 0
    for _ in range(cases):
        found = [one.p for one in sweep(rng, lines, seeds, tasks)]
        together += any(one.found for one in holm(found))
        alone += min(found) <= 0.05
    assert together / cases <= 0.06, together / cases
    assert alone > 2 * together  # what comes of it without a correction


def test_p_values_that_are_exact_have_a_false_finding_as_often_as_they_may() -> None:
    """Of comparisons that share half of their noise: below 6 %, and not by never finding anything."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(20_000, 1))
    z = np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.normal(size=(20_000, 8))
    from scipy.special import erfc

    p = erfc(np.abs(z) / np.sqrt(2))
    share = np.mean([any(one.found for one in holm(list(row))) for row in p[:4000]])
    assert 0.02 < share <= 0.06 < np.mean(p.min(axis=1) <= 0.05)
