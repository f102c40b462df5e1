"""Families of tasks: their weights, a curriculum that follows success, held-out tasks of each of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollout_world import StubEnv

from airloop.errors import AirError
from airloop.rollout.mixture import Curriculum
from airloop.rollout.schedule import TaskSchedule, stratified
from airloop.types import Task

CURRICULUM = Curriculum(low=0.2, high=0.8, floor=0.1, episodes=8)


class Levels(StubEnv):
    """So many tasks of each family."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self._tasks = [Task("stub", f"{f} {i}", "train", family=f) for f, size in sizes.items() for i in range(size)]


def families(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(task.family for task in tasks)


def test_families_are_sampled_by_their_weights() -> None:
    envs = {"e": Levels(easy=90, medium=9, hard=1)}
    plain = TaskSchedule(envs, "train", 0)
    assert families(plain.batch(0, 100)) == {"easy": 90, "medium": 9, "hard": 1}
    weighed = TaskSchedule(envs, "train", 0, families={"e": {"easy": 0, "medium": 3}})
    assert families(weighed.batch(0, 40)) == {"medium": 30, "hard": 10}, "one that is not named counts 1"
    assert len({task.id for task in weighed.batch(0, 12) if task.family == "medium"}) == 9
    assert weighed.describe(32, 8, 10).startswith("100 examples mixed as e/medium 75% (9), e/hard 25% (1); 4 examples")


def test_ratios_of_environments_hold_whatever_their_families_weigh() -> None:
    envs = {"a": Levels(easy=50, hard=50), "b": Levels(one=5)}
    schedule = TaskSchedule(envs, "train", 0, {"a": 1.0, "b": 3.0}, {"a": {"easy": 4}})
    drawn = schedule.batch(0, 200)
    assert Counter(task.env for task in drawn) == {"b": 150, "a": 50}
    assert families(drawn) == {"one": 150, "easy": 40, "hard": 10}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"esay": 1.0}, "has no family of tasks 'esay'.*did you mean 'easy'"),
        ({"easy": 0, "hard": 0}, "All families of 'e' have the weight 0"),
    ],
)
def test_a_family_that_is_not_there_and_none_at_all_are_refused(weights: Mapping[str, float], said: str) -> None:
    with pytest.raises(AirError) as error:
        TaskSchedule({"e": Levels(easy=5, hard=5)}, "train", 0, families={"e": weights})
    assert re.search(said, f"{error.value.problem} {error.value.fix}")


def test_an_environment_of_one_kind_has_no_families() -> None:
    with pytest.raises(AirError) as error:
        TaskSchedule({"e": StubEnv()}, "train", 0, families={"e": {"easy": 1.0}})
    assert "of one kind" in error.value.fix


@pytest.mark.parametrize(
    ("success", "weight"), [(0.0, 0.1), (0.05, 0.25), (0.2, 1), (0.5, 1), (0.8, 1), (0.9, 0.5), (1.0, 0.1)]
)
def test_the_weight_is_full_in_the_band_and_falls_off_outside(success: float, weight: float) -> None:
    assert CURRICULUM.weight(success) == pytest.approx(weight)


def figures(**successes: float) -> dict[str, dict[str, float]]:
    return {name: {"episodes": 8, "success": success, "reward": 0.0} for name, success in successes.items()}


def test_a_curriculum_follows_success() -> None:
    """Easy tasks first, since hard ones are never solved; when easy ones always are, hard ones, which are by then."""
    schedule = TaskSchedule({"e": Levels(easy=50, hard=50)}, "train", 0, curriculum=CURRICULUM)
    assert families(schedule.batch(0, 40)) == {"easy": 20, "hard": 20}, "nothing is known"
    schedule.heard({"task": figures(easy=0.5, hard=0.0)})
    assert families(schedule.batch(1, 110)) == {"easy": 100, "hard": 10}
    schedule = TaskSchedule({"e": Levels(easy=50, hard=50)}, "train", 0, curriculum=CURRICULUM)
    for line in (figures(easy=0.5, hard=0.0), figures(easy=1.0, hard=0.3)):
        schedule.heard({"task": line})
    assert families(schedule.batch(2, 110)[-110:])["hard"] > 90
    assert families(schedule.spares(2, 40, 33)) == {"hard": 30, "easy": 3}


def test_a_family_is_judged_by_its_last_episodes_and_not_by_others() -> None:
    assert CURRICULUM.weights([figures(a=0.0), figures(b=0.5)]) == {"a": 0.1, "b": 1.0}
    assert CURRICULUM.weights([figures(a=1.0), figures(a=0.0)]) == {"a": 0.1}, "eight episodes are enough"
    assert CURRICULUM.weights([{"a": {"episodes": 4, "success": 1.0}}, {"a": {"episodes": 4, "success": 0.0}}]) == {
        "a": 1.0
    }
    assert CURRICULUM.weights([{"a": {"episodes": 8, "reward": 0.5}}]) == {}, "no success is known"


@given(
    history=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12),
    n=st.integers(1, 12),
)
def test_a_resumed_schedule_goes_on_as_if_it_had_never_stopped(history: list[tuple[float, ...]], n: int) -> None:
    envs = {"e": Levels(a=5, b=7, c=3)}
    lines = [figures(a=a, b=b, c=c) for a, b, c in history]
    whole, drawn = TaskSchedule(envs, "train", 1, curriculum=CURRICULUM), []
    for step, line in enumerate(lines):
        drawn.append((whole.batch(step, n), whole.spares(step, n, 4)))
        whole.heard({"task": line})
    resumed = TaskSchedule(envs, "train", 1, curriculum=CURRICULUM)
    for line in lines[:-1]:
        resumed.heard({"task": line})
    last = len(lines) - 1
    assert (resumed.batch(last, n), resumed.spares(last, n, 4)) == drawn[-1]
    for family in "abc":
        seen = [task.id for batch, _ in drawn for task in batch if task.family == family]
        size = {"a": 5, "b": 7, "c": 3}[family]
        assert all(len(set(seen[i : i + size])) == len(seen[i : i + size]) for i in range(0, len(seen), size))


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), share=st.floats(0, 1))
def test_held_out_tasks_have_of_each_family_its_share(sizes: list[int], share: float) -> None:
    tasks = [Task("e", f"{f} {i}", "test", family=f"f{f}") for f, size in enumerate(sizes) for i in range(size)]
    count = round(share * len(tasks))
    chosen = stratified(tasks, count)
    assert len({task.id for task in chosen}) == len(chosen) == count
    for f, size in enumerate(sizes):
        assert abs(families(chosen)[f"f{f}"] - count * size / len(tasks)) <= 1.5
    assert {task.id for task in stratified(tasks, len(tasks))} == {task.id for task in tasks}


def test_held_out_tasks_of_one_kind_are_the_first_ones() -> None:
    tasks = [Task("e", str(i), "test") for i in range(9)]
    assert stratified(tasks, 4) == tasks[:4]
