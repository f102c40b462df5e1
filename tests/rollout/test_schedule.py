from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollout_world import StubEnv

from airloop.errors import AirError
from airloop.rollout.schedule import Names, TaskSchedule, place_in_step
from airloop.seeds import episode_seed, turn_seed


def test_seeds_are_the_same_in_every_process() -> None:
    code = (
        "from airloop.seeds import episode_seed, turn_seed; print(episode_seed(1, 2, 'e', 'täsk', 3), turn_seed(4, 5))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(episode_seed(1, 2, "e", "täsk", 3)), str(turn_seed(4, 5))]
    # Pinned: with other values every run there is would go differently.
    assert (episode_seed(1, 2, "e", "t", 3), turn_seed(4, 5)) == (18566484, 939662895)
    seeds = {episode_seed(0, step, "e", "t", sample) for step in range(20) for sample in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**31 for seed in seeds)


def test_every_epoch_holds_each_task_once_in_its_own_order() -> None:  # E5
    envs = {"a": StubEnv(tasks=5), "b": StubEnv(tasks=7)}
    schedule = TaskSchedule(envs, "train", seed=3)
    stream = [(task.env, task.id) for step in range(9) for task in schedule.batch(step, 4)]
    epochs = [stream[i : i + 12] for i in range(0, 36, 12)]
    assert all(len(set(epoch)) == 12 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != sorted(epochs[0])
    again = TaskSchedule(envs, "train", seed=3)
    assert [again.batch(5, 4), again.batch(2, 4)] == [schedule.batch(5, 4), schedule.batch(2, 4)]
    assert TaskSchedule(envs, "train", seed=4).batch(0, 12) != schedule.batch(0, 12)


def test_spares_are_other_tasks_and_leave_the_stream_alone() -> None:
    schedule = TaskSchedule({"a": StubEnv(tasks=10)}, "train", seed=3)
    batch, spares = schedule.batch(1, 4), schedule.spares(1, 4, 9)
    ids = Counter(task.id for task in spares)
    assert len(ids) == 6 and max(ids.values()) == 2 and not ids.keys() & {task.id for task in batch}
    assert spares == schedule.spares(1, 4, 9) != schedule.spares(2, 4, 9)
    assert schedule.spares(1, 4, 3) == spares[:3]
    single = TaskSchedule({"a": StubEnv(tasks=1)}, "train", seed=3)
    assert len(single.spares(0, 2, 2)) == 2


def test_a_split_without_tasks_is_refused() -> None:
    with pytest.raises(AirError, match="no tasks in the split 'eval'"):
        TaskSchedule({"a": StubEnv()}, "eval", seed=0)


def test_names_never_collide_and_tell_their_place() -> None:  # G8
    names = Names()
    made = [names.make(task, 12, i, s) for task in ("a/b c", "a_b_c", "../..", "é") for i in range(9) for s in range(9)]
    made += [names.make("a/b c", 12, 3, 4) for _ in range(3)]
    assert len(set(made)) == len(made)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzT0123456789._-") and name[0] != "." for name in made)
    assert place_in_step(made[-1]) == (3, 4)
    assert made[0].startswith("a-b-c_pi12_2") and made[0].endswith("_0-0")


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    ratios=st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 9),
)
def test_ratios_share_out_every_stretch_and_each_environment_goes_through_its_tasks(sizes, ratios, seed) -> None:
    envs = {f"e{i}": StubEnv(tasks=size) for i, size in enumerate(sizes)}
    wanted = dict(zip(envs, ratios, strict=False))
    schedule = TaskSchedule(envs, "train", seed, wanted)
    drawn = [task for step in range(20) for task in schedule.batch(step, 10)]
    total = sum(wanted.values())
    for name, env in envs.items():
        own = [task.id for task in drawn if task.env == name]
        assert abs(len(own) - 200 * wanted[name] / total) < len(envs)
        size = len(env.tasks("train"))
        for epoch in range(len(own) // size):
            assert len(set(own[epoch * size : (epoch + 1) * size])) == size
    again = TaskSchedule(envs, "train", seed, wanted)
    assert again.batch(19, 10) == schedule.batch(19, 10)  # whatever was asked before
    assert len(schedule.spares(3, 10, 25)) == 25
