"""The split of a step's time adds up to the clock, on a real run."""

from __future__ import annotations

from support.tiny_runs import tiny_run

from airloop.runs.run import Run

PARTS = ("prefill", "decode", "tool", "queue", "opening", "scoring", "waiting", "other")


def test_the_parts_of_a_step_add_up_to_its_sampling_time() -> None:
    for metrics in Run.open(tiny_run()).metrics("train"):
        times = metrics["times"]
        assert abs(sum(times[p] for p in PARTS) - times["sampling"]) <= 0.03 * times["sampling"]
        assert all(times[p] >= -1e-6 for p in PARTS), times
        assert times["prefill"] > 0 and times["decode"] > 0 and times["training"] > 0
