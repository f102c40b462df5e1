"""Schedules of the learning rate: their shape, their keys, and the rates of a run."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_runs import write_config

from airloop.config import load_config
from airloop.errors import AirError
from airloop.learn.schedules import SCHEDULES, scheduled_lr
from airloop.training import start
from airloop.watch.display.display import Display


@given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 40),
    decay=st.none() | st.integers(1, 400),
    least=st.none() | st.floats(0, 1e-4),
)
def test_rates_fall_from_the_whole_rate_and_never_below_the_least(schedule, steps, warmup, decay, least):
    rates = [
        scheduled_lr(schedule, 1e-4, step, steps, warmup_steps=warmup, decay_steps=decay, min_lr=least)
        for step in range(steps)
    ]
    assert rates[0] == 1e-4 and all(rates[step] == 1e-4 for step in range(min(warmup, steps)))
    assert all(a >= b for a, b in itertools.pairwise(rates))
    assert rates[-1] > (least or 0.0) or rates[-1] == least == 1e-4 or math.isclose(rates[-1], least or 0.0)
    if decay is not None:
        assert all(rate == 1e-4 for rate in rates[: max(0, steps - decay)])


def test_the_shapes():
    assert scheduled_lr("cosine", 2.0, 5, 10) == pytest.approx(1.0)
    assert scheduled_lr("linear", 2.0, 5, 10) == pytest.approx(1.0)
    assert scheduled_lr("linear", 2.0, 5, 10, min_lr=1.0) == pytest.approx(1.5)
    assert scheduled_lr("linear", 2.0, 9, 10, decay_steps=2) == pytest.approx(1.0)
    assert scheduled_lr("constant", 2.0, 9, 10) == 2.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trainer.optim.decay_steps", "5"], "does nothing with schedule"),
        (["--trainer.optim.min_lr", "1e-6"], "does nothing with schedule"),
        (["--trainer.optim.schedule", "linear", "--trainer.optim.min_lr", "1"], "which is higher"),
    ],
)
def test_keys_that_say_nothing_or_the_opposite_are_refused(words, said):
    with pytest.raises(AirError, match=said):
        load_config(["arith", *words])


def test_prime_rls_scheduler_is_read():
    words = ["type", "linear", "decay_steps", "4", "min_lr", "1e-6", "warmup_steps", "2"]
    flags = [w for k, v in zip(words[::2], words[1::2], strict=True) for w in (f"--trainer.scheduler.{k}", v)]
    with pytest.raises(AirError) as refused:
        load_config(["arith", *flags])
    for line in ("schedule linear", "decay_steps 4", "min_lr 1e-6", "warmup_steps 2"):
        assert f"--trainer.optim.{line}" in str(refused.value)


def test_a_runs_updates_have_the_scheduled_rates(tmp_path):
    config = write_config(tmp_path)
    words = [
        "@",
        str(config),
        "--max_steps",
        "4",
        "--trainer.optim.schedule",
        "linear",
        "--orchestrator.eval.interval",
        "0",
    ]
    done = start(load_config(words), Display(quiet=True), skip_proofs=True)
    assert [m["learner"]["lr"] for m in done.run.metrics("train")] == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])
