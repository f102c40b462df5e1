"""From paired differences to a verdict: what the rule says, for any numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.stats.intervals import Interval
from airloop_lab.hypothesis_file import Rule
from airloop_lab.verdicts import Difference, by_rule, decide, difference

numbers = st.floats(-2, 2, allow_nan=False)
margins = st.floats(0.01, 1)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low, mean, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Interval(mean, low, high, draw(st.integers(3, 9)))


def mirrored(found: Interval) -> Interval:
    return Interval(-found.mean, -found.high, -found.low, found.n)


@given(intervals(), margins)
def test_lower_is_higher_with_the_sides_exchanged(found: Interval, margin: float) -> None:
    higher = by_rule(Rule(prediction="higher", margin=margin), found)
    lower = by_rule(Rule(prediction="lower", margin=margin), mirrored(found))
    assert higher.verdict == lower.verdict


@given(intervals(), margins)
def test_a_verdict_is_what_the_whole_interval_says(found: Interval, margin: float) -> None:
    verdict = by_rule(Rule(prediction="higher", margin=margin), found).verdict
    assert (verdict == "supported") == (found.low > margin)
    assert (verdict == "rejected") == (found.high < margin)
    same = by_rule(Rule(prediction="same", margin=margin), found).verdict
    if same == "supported":
        assert verdict != "supported" and max(abs(found.low), abs(found.high)) <= margin
    if verdict == "supported":
        assert same == "rejected"


@given(intervals(), margins, st.floats(0, 1))
def test_a_wider_interval_never_turns_a_verdict_into_another(found: Interval, margin: float, more: float) -> None:
    wide = Interval(found.mean, found.low - more, found.high + more, found.n)
    for prediction in ("higher", "lower", "same"):
        rule = Rule(prediction=prediction, margin=margin)
        assert by_rule(rule, wide).verdict in ("undecided", by_rule(rule, found).verdict)


def of(interval: Interval, seeds: int = 4, tasks: int = 8) -> Difference:
    return Difference(replace(interval, n=seeds), replace(interval, n=tasks))


@given(intervals())
def test_two_pairs_decide_nothing_and_five_tasks_neither(found: Interval) -> None:
    rule = Rule(prediction="higher")
    assert decide(rule, of(found, seeds=2)).verdict == "undecided"
    few = decide(rule, of(found, tasks=5))
    assert few.verdict == "undecided" and few.why.startswith("too few tasks to tell (5 of 6)")
    assert decide(rule, of(found, tasks=6)) == by_rule(rule, of(found).interval)


def test_a_base_that_did_not_learn_decides_nothing() -> None:
    rule = Rule(prediction="lower", margin=0.1, base_gain=0.3)
    found = of(Interval(-0.5, -0.55, -0.45, 4))
    assert decide(rule, found, Interval(0.6, 0.5, 0.7, 4)).verdict == "supported"
    decision = decide(rule, found, Interval(0.6, 0.2, 1.0, 4))
    assert decision.verdict == "undecided" and "the base itself gained +0.600 [+0.200, +1.000]" in decision.why


by_seed = st.dictionaries(
    st.integers(0, 5), st.fixed_dictionaries({("e", t): numbers for t in "abc"}), min_size=3, max_size=5
)


@given(by_seed)
def test_the_interval_that_decides_holds_both_others(values: dict[int, dict[tuple[str, str], float]]) -> None:
    found = difference(values)
    for one in (found.over_seeds, found.over_rows):
        assert found.interval.low <= one.low and one.high <= found.interval.high
    assert math.isclose(found.over_seeds.mean, found.over_rows.mean, abs_tol=1e-9)
    flipped = difference({s: {t: -v for t, v in tasks.items()} for s, tasks in values.items()})
    assert math.isclose(flipped.over_seeds.high, -found.over_seeds.low, abs_tol=1e-9)


def test_both_doubts_count() -> None:
    """Seeds that agree and tasks that do not, or the other way round: neither hides behind the other."""
    seeds = difference({s: {("e", str(t)): 0.5 + 0.1 * s for t in range(8)} for s in range(4)})
    tasks = difference({s: {("e", str(t)): 0.5 + 0.1 * t for t in range(8)} for s in range(4)})
    both = difference({s: {("e", str(t)): 0.5 + 0.1 * s + 0.1 * t for t in range(8)} for s in range(4)})
    assert seeds.interval.low == pytest.approx(seeds.over_seeds.low)
    assert tasks.interval.low == pytest.approx(tasks.over_rows.low)
    assert both.interval.low < min(both.over_seeds.low, both.over_rows.low)
    assert both.interval.high > max(both.over_seeds.high, both.over_rows.high)
