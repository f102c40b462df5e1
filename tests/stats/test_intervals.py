"""Intervals and exact tests: what they say of known cases, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.stats.binomial import at_least, share_interval
from airloop.stats.intervals import (
    FEWEST,
    Interval,
    difference,
    fewest,
    gain_interval,
    mean_interval,
    student_mean,
)
from airloop.stats.student import student_quantile, student_share

numbers = st.floats(-2, 2, allow_nan=False)


# --- Student and Clopper-Pearson against what is known ----------------------------------------------------------------


def test_student_by_the_table() -> None:
    found = student_mean([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and math.isclose(found.high - 2.0, 4.302653 / math.sqrt(3), rel_tol=1e-6)
    assert student_mean([1.0]).high == math.inf and str(student_mean([1.0])) == "1.000"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 23, 100, 999])
def test_students_t_is_that_of_scipy(freedom: int) -> None:
    from scipy.special import stdtr, stdtrit

    for share in (0.6, 0.9, 0.975, 0.9995):
        assert student_quantile(freedom, share) == pytest.approx(stdtrit(freedom, share), rel=1e-10)
    for t in (-3.0, 0.0, 0.7, 12.0):
        assert student_share(t, freedom) == pytest.approx(stdtr(freedom, t), abs=1e-12)


@pytest.mark.parametrize("trials", [1, 6, 24, 200, 3000])
def test_shares_are_those_of_scipy(trials: int) -> None:
    from scipy.special import bdtrc, betaincinv

    for successes in sorted({0, 1, trials // 3, trials - 1, trials}):
        for p in (0.01, 0.4, 0.97):
            wanted = bdtrc(successes - 1, trials, p) if successes else 1.0
            assert at_least(successes, trials, p) == pytest.approx(wanted, rel=1e-9, abs=1e-15)
        low, high = share_interval(successes, trials, 0.95)
        assert low == pytest.approx(betaincinv(successes, trials - successes + 1, 0.025) if successes else 0, rel=1e-8)
        rest = trials - successes
        assert high == pytest.approx(betaincinv(successes + 1, rest, 0.975) if rest else 1, rel=1e-8)


# --- single means -----------------------------------------------------------------------------------------------------


def test_all_of_24_is_not_certainty() -> None:
    found = mean_interval([1.0] * 24, share=True)
    assert (found.mean, found.high) == (1.0, 1.0) and 0.85 < found.low < 0.86
    assert mean_interval([0.0] * 24, share=True).high == pytest.approx(1 - found.low)
    # A count that was 1 each time may be 1 by its nature: an episode has one turn.
    assert mean_interval([1.0] * 24).low == 1.0
    # Shares that are means of several episodes stay between 0 and 1.
    found = mean_interval([1.0, 0.75, 1.0, 1.0, 1.0, 1.0], share=True)
    assert 0.8 < found.low < found.mean < found.high == 1.0


# --- differences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("won", "lost", "tied", "word"),
    [
        (3, 0, 3, "no evidence of a difference"),
        (4, 0, 2, "no evidence of a difference"),  # Student's t alone would say "higher"
        (5, 0, 1, "no evidence of a difference"),
        (6, 0, 0, "higher"),
        (0, 6, 0, "lower"),
        (6, 0, 30, "higher"),
        (5, 0, 31, "no evidence of a difference"),
        (10, 2, 12, "higher"),
        (9, 2, 13, "no evidence of a difference"),
        (5, 0, 0, "too few tasks to tell (5 of 6)"),
    ],
)
def test_passed_and_failed_by_mcnemars_exact_test(won: int, lost: int, tied: int, word: str) -> None:
    before = [0.0] * won + [1.0] * lost + [1.0] * tied
    after = [1.0] * won + [0.0] * lost + [1.0] * tied
    assert difference(after, before, share=True).word == word


def test_ties_only_leave_room_for_a_difference() -> None:
    found = difference([1.0] * 24, [1.0] * 24, share=True)
    assert found.mean == 0 and found.low == -found.high and 0.14 < found.high < 0.15
    assert difference([1.0] * 24, [1.0] * 24) == Interval(0.0, 0.0, 0.0, 24)  # turns: nothing to doubt
    assert difference([3.0] * 24, [1.0] * 24) == Interval(2.0, 2.0, 2.0, 24)


def test_the_fewest_tasks_are_those_that_can_tell() -> None:
    assert FEWEST == 6 and (fewest(0.975), fewest(0.9875), fewest(0.99)) == (7, 8, 8)
    for level in (0.9, 0.95, 0.975, 0.9875):
        n = fewest(level)
        assert gain_interval([0.1 * i for i in range(1, n + 1)], level).word == "higher"
        assert gain_interval([0.1 * i for i in range(1, n)], level).low == -math.inf
        assert gain_interval([1.0] * n, level).word == "higher"
        assert gain_interval([1.0] * (n - 1), level).word.startswith(f"too few tasks to tell ({n - 1} of {n})")


@given(st.lists(numbers, min_size=2, max_size=20), st.sampled_from([0.9, 0.95, 0.975]), st.booleans())
def test_an_interval_holds_its_mean_and_turns_with_the_sides(gains: list[float], level: float, share: bool) -> None:
    if share:
        gains = [gain / 2 for gain in gains]
    found, turned = gain_interval(gains, level, share), gain_interval([-g for g in gains], level, share)
    assert found.low <= found.mean + 1e-9 and found.mean - 1e-9 <= found.high
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    wider = gain_interval(gains, 1 - (1 - level) / 2, share)
    assert wider.low <= found.low + 1e-12 and found.high - 1e-12 <= wider.high


def test_unequal_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tasks against 2"):
        difference([1.0, 2.0, 3.0], [1.0, 2.0])


# --- how often they are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "shift"), [(6, 0.3), (12, 0.1), (24, 0.3), (60, 0.1)])
def test_the_interval_of_a_difference_holds_it_as_often_as_it_says(n: int, shift: float) -> None:
    """Rewards of 0, 0.1 and 1.1, of which `shift` more reach the highest."""
    rng = np.random.default_rng(n)
    values, cases = np.array([0.0, 0.1, 1.1]), 1500
    before = rng.choice(values, size=(cases, n), p=[0.6, 0.25, 0.15])
    after = rng.choice(values, size=(cases, n), p=[0.6 - shift, 0.25, 0.15 + shift])
    found = [gain_interval(list(gains)) for gains in after - before]
    held = sum(one.low - 1e-9 <= 1.1 * shift <= one.high + 1e-9 for one in found) / cases
    assert held >= 0.92, held
