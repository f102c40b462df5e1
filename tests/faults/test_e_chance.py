"""E12: with few tasks chance is called progress. How often it is: by simulation; of passes and fails, by counting."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from airloop.stats.intervals import FEWEST, MOST_TRIED, gain_interval
from airloop.stats.looks import Looks, level_after, percent
from airloop.stats.student import student_quantile
from airloop_lab.hypothesis_file import Rule
from airloop_lab.verdicts import decide, difference

BAR = 0.06
Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, int]], np.ndarray]


def called(gains: list[float], share: bool = False) -> bool:
    return gain_interval(gains, share=share).word in ("higher", "lower")


def wrong(n: int, p: float) -> float:
    """How often two equal policies that pass with probability p are called different: over all ways it can come out."""
    won = p * (1 - p)  # one passes and the other does not
    total = 0.0
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            ties = n - wins - losses
            if wins == losses or not called([1.0] * wins + [-1.0] * losses + [0.0] * ties, share=True):
                continue
            ways = math.lgamma(n + 1) - math.lgamma(wins + 1) - math.lgamma(losses + 1) - math.lgamma(ties + 1)
            total += math.exp(ways + (wins + losses) * math.log(won) + ties * math.log(1 - 2 * won))
    return total


@pytest.mark.parametrize("n", [*range(FEWEST, 25), 36])
def test_E12_of_passes_and_fails_chance_is_called_progress_once_in_twenty_at_most(n: int) -> None:
    found = {p: wrong(n, p) for p in (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)}
    assert max(found.values()) <= 0.05, found


def skewed(rng: Rng, size: tuple[int, int]) -> np.ndarray:
    """Half earn nothing, few earn much."""
    return np.where(rng.random(size) < 0.5, 0.0, np.round(rng.exponential(size=size) ** 2, 1))


def passes_of_four(rng: Rng, size: tuple[int, int]) -> np.ndarray:
    """The mean of four episodes of each task, some tasks easy and some hard."""
    return rng.binomial(4, rng.beta(0.5, 0.5, size)) / 4


REWARDS: dict[str, Draw] = {
    "mostly nothing, a little for the form, seldom all": lambda rng, size: rng.choice(
        [0.0, 0.1, 1.1], size=size, p=[0.6, 0.25, 0.15]
    ),
    "a price, nothing, all": lambda rng, size: rng.choice([-0.5, 0.0, 1.0], size=size, p=[0.2, 0.5, 0.3]),
    "quarters": lambda rng, size: rng.choice([0.0, 0.25, 0.5, 1.0], size=size, p=[0.3, 0.3, 0.2, 0.2]),
    "skewed with ties": skewed,
    "heavy tails": lambda rng, size: np.round(rng.lognormal(0, 1.5, size), 1),
    "means of four episodes": passes_of_four,
    "a bell": lambda rng, size: rng.normal(size=size),
}


def students(gains: np.ndarray) -> np.ndarray:
    """Which of many cases Student's t calls a difference: the rule beyond MOST_TRIED tasks, for all of them at once."""
    n = gains.shape[1]
    half = student_quantile(n - 1) * gains.std(axis=1, ddof=1) / np.sqrt(n)
    return np.abs(gains.mean(axis=1)) > half + 1e-12


@pytest.mark.long
@pytest.mark.parametrize("rewards", REWARDS)
def test_E12_chance_is_called_a_difference_once_in_twenty_at_most(rewards: str) -> None:
    """Signs that are tried in all ways are wrong in 5 % at most, whatever the rewards; Student's t has to be shown."""
    rng = np.random.default_rng(12)
    found, draw = {}, REWARDS[rewards]
    for n in range(FEWEST, MOST_TRIED + 1):
        cases = 400
        gains = draw(rng, (cases, n)) - draw(rng, (cases, n))
        found[n] = sum(called(list(one)) for one in gains) / cases
    assert sum(found.values()) / len(found) <= BAR and max(found.values()) <= 0.09, found  # of 400, by chance
    for n in (*range(MOST_TRIED + 1, 22), 32, 64, 128):
        gains = draw(rng, (12_000, n)) - draw(rng, (12_000, n))
        found[n] = float(students(gains).mean())
        assert found[n] <= BAR, (n, found[n])
        for one, by_student in zip(gains[:20], students(gains[:20]), strict=True):
            exact = len({*np.abs(one).round(9)} - {0.0}) < 2  # tasks won, lost or tied: a stricter rule
            assert called(list(one)) == by_student or (exact and by_student)


@pytest.mark.parametrize("gains", [[1.0] * 3 + [0.0] * 3, [0.4, 0.2, 0.9, 0.0, 0.0, 0.0], [1.0] * 4 + [0.0] * 2])
def test_E12_three_wins_and_three_ties_of_six_are_not_higher(gains: list[float]) -> None:
    """The percentile bootstrap, which drew from the same six again and again, called all of these progress."""
    draws = np.random.default_rng(0).integers(0, 6, size=(10_000, 6))
    assert np.quantile(np.array(gains)[draws].mean(axis=1), 0.025) > 0
    assert gain_interval(gains).word == "no evidence of a difference"


@pytest.mark.parametrize(("seeds", "tasks"), [(3, 6), (3, 25), (4, 12), (8, 25)])
@pytest.mark.parametrize("noise", ["seeds", "tasks", "both"])
def test_E12_a_hypothesis_that_is_not_true_is_seldom_supported(seeds: int, tasks: int, noise: str) -> None:
    """2.5 % is what is promised: one direction is predicted."""
    rng, cases, rule = np.random.default_rng(3), 1000, Rule(prediction="higher")
    supported = 0
    for _ in range(cases):
        by_seed = rng.normal(size=seeds) * (noise != "tasks")
        by_task = rng.normal(size=tasks) * (noise != "seeds")
        own = 0.3 * rng.normal(size=(seeds, tasks))
        values = by_seed[:, None] + by_task[None, :] + own
        found = {s: {("e", str(t)): float(values[s, t]) for t in range(tasks)} for s in range(seeds)}
        supported += decide(rule, difference(found)).verdict == "supported"
    assert supported / cases <= 0.04  # 2.5 % of a thousand is above that in one of a thousand such tests


def test_E12_seeds_that_are_added_after_a_look_are_paid_for(tmp_path: Path) -> None:
    """Three seeds, looked at; five more if they do not support it; and so on: together still once in twenty at most."""
    looks = Looks(tmp_path / "looks.jsonl")
    assert looks.before([0, 1, 2]) == []
    looks.note([0, 1, 2])
    looks.note([2, 1, 0])
    assert looks.before([0, 1, 2]) == [] and looks.before([0, 1, 2, 3]) == [frozenset({0, 1, 2})]
    looks.note([0, 1, 2, 3])
    assert len(looks.before([0, 1, 2, 3])) == 1 and len(looks.before(range(5))) == 2
    assert [percent(level_after(k)) for k in range(3)] == ["95 %", "97.5 %", "98.75 %"]
    rng, cases, rule = np.random.default_rng(5), 600, Rule(prediction="higher")
    careless = careful = 0
    for _ in range(cases):
        values = rng.normal(size=(20, 1)) + 0.2 * rng.normal(size=(20, 8))
        for level in (lambda k: 0.95, level_after):
            for k, seeds in enumerate((3, 5, 8, 12, 20)):
                found = {s: {("e", str(t)): float(values[s, t]) for t in range(8)} for s in range(seeds)}
                if decide(rule, difference(found, level(k))).verdict == "supported":
                    careless, careful = careless + (level is not level_after), careful + (level is level_after)
                    break
    assert careful / cases <= 0.05 < careless / cases
