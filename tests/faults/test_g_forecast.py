"""G14: what a run will take is known from warm kernels, not from those that the first replies compile."""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.probe_cases import ARITH, ask, case_of, chance, graded

from airloop import speed
from airloop.config import load_config
from airloop.costs import EpisodeSize, asked_for, costs_of
from airloop.doctor.forecast import forecast
from airloop.doctor.probe import Probe
from airloop.engine.embedded.engine import EmbeddedEngine
from airloop.learn.learner import Learner
from airloop.speed import Speed, measure_speed
from airloop.types import Trajectory

# A compiler's time, where a reply takes hundredths of a second.
COMPILING_S = 2.0


def cold(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The first step of each kind and size takes long, as on a GPU: kernels are compiled and graphs captured."""
    steps, passes = EmbeddedEngine._run, Learner._backward
    seen: dict[str, int] = {}

    def once(name: str) -> None:
        seen[name] = seen.get(name, 0) + 1
        if seen[name] == 1:
            time.sleep(COMPILING_S)

    def run(self: EmbeddedEngine, step: Any, under_way: Any) -> Any:
        if step is not None:
            once("prefill" if step.prefill else f"decode {len(step.decode)}")
        return steps(self, step, under_way)

    def backward(self: Learner, *args: Any) -> Any:
        once("backward")
        return passes(self, *args)

    monkeypatch.setattr(EmbeddedEngine, "_run", run)
    monkeypatch.setattr(Learner, "_backward", backward)
    return seen


def forecast_of(case: Any) -> float:
    """Seconds of the whole run, as the check says them."""
    (finding,) = ask(case, "time_per_turn")
    number, unit = re.search(r"evaluations ([\d.]+) (s|min|h)", finding.seen).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "min": 60, "h": 3600}[unit]


@pytest.mark.long
def test_G14_an_engine_that_is_slow_at_first_changes_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    flags = {**ARITH, "max_steps": "400", "orchestrator.eval.num_examples": "8"}
    factors = []
    for _ in range(3):  # other tests may take the machine while one of the two is measured
        with case_of(flags) as case:
            warm = forecast_of(case)
        with pytest.MonkeyPatch.context() as patch:
            seen = cold(patch)
            with case_of(flags) as case:
                found = forecast_of(case)
        assert seen["prefill"] > 1 and seen["backward"] > 1
        factors.append(max(warm / found, found / warm))
        if factors[-1] < 2:
            return
    pytest.fail(f"off by {factors}")


@pytest.mark.long
def test_G14_speeds_are_measured_after_a_pass_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cold(monkeypatch)
    with case_of(ARITH) as case:
        speed = case.wait(measure_speed(case.parts))
        together = min(8, case.parts.engine.describe().batch)
    assert speed.together == together and {"decode 1", f"decode {together}"} <= set(seen)
    slowest = COMPILING_S / 2  # had any of the first passes been timed
    assert speed.prompt > 64 / slowest and speed.decode > together * 6 / slowest and speed.train > 128 / slowest


def test_G14_deadlines_follow_from_warm_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    from airloop.doctor.reply_times import time_replies
    from airloop.rollout.schedule import TaskSchedule

    cold(monkeypatch)
    with case_of(ARITH) as case:
        plan = TaskSchedule(case.parts.envs, "train", 0).batch(0, 2)
        times = case.wait(time_replies(case.parts, plan, 8, 600.0))
    assert times is not None and times.token_s < COMPILING_S / 8 and times.first_s < COMPILING_S


def test_G14_replies_of_unequal_length_take_as_long_as_the_longest() -> None:
    """A GPU's step takes as long for one reply as for 64; a CPU's 64 times as long."""
    gpu = Speed(1e6, decode=6400.0, train=1e6, alone=100.0, together=64)
    assert decoding_s(gpu, longest=500, total=64 * 50) == pytest.approx(5.0)
    cpu = Speed(1e6, decode=100.0, train=1e6, alone=100.0, together=64)
    assert decoding_s(cpu, longest=500, total=64 * 50) == pytest.approx(32.0)


def decoding_s(speed: Speed, longest: int, total: int) -> float:
    """Of 64 replies side by side, as the model of costs has it."""
    size = EpisodeSize(0, total / 64, 0, longest=longest)
    config = load_config(["--orchestrator.batch_size", "64", "--orchestrator.max_concurrent", "64"])
    costs = costs_of(config, replace(speed, train=math.inf), size)
    return costs.step(asked_for(config, warmstart=False))


@pytest.mark.long
def test_G14_a_runs_steps_take_what_was_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that was forecast is made, by the same parts, and timed: by the clock of this process's own work, of
    which whoever else uses the machine takes nothing."""
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=time.process_time))
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    flags = {**ARITH, "orchestrator.batch_size": "64", "orchestrator.sampling.max_tokens": "32"}
    with case_of(flags) as case:
        parts, probe = case.parts, without_waits(case.probe)
        ratios: list[float] = []
        while len(ratios) < 3 and sum(map(is_near, ratios)) < 2:  # with two that are, the median of three is
            told = forecast(case.config, probe, case.wait(measure_speed(parts)))
            took: list[float] = []
            for _ in range(2):  # as the speeds are measured: of two passes the quicker one counts
                began = time.process_time()
                case.wait(one_step(parts))
                took.append(time.process_time() - began)
            ratios.append(min(took) / told.step_s)
    assert sum(map(is_near, ratios)) >= 2, ratios


def is_near(ratio: float) -> bool:
    return 1 / 1.5 < ratio < 1.5


def without_waits(probe: Probe) -> Probe:
    """Its episodes had no tools, and waited for nothing but the model and their turn on the machine."""

    def quick(episode: Trajectory) -> Trajectory:
        return replace(episode, seconds=sum(turn.times.queue + turn.times.model for turn in episode.turns))

    return replace(
        probe, groups=tuple(replace(g, trajectories=tuple(map(quick, g.trajectories))) for g in probe.groups)
    )


async def one_step(parts: Any) -> None:
    from airloop.learn.advantages import assign_advantages
    from airloop.rollout.schedule import TaskSchedule

    config = parts.config
    o = config.orchestrator
    plan = TaskSchedule(parts.envs, "train", 0).batch(0, o.batch_size // o.rollouts_per_example)
    collected = await parts.sampler(lambda *_: None).collect(0, plan, parts.policy.version)
    batch = assign_advantages(collected.groups, loss="grpo", scale_rewards=True, token_constant=32)
    async with parts.engine.paused():
        parts.learner.update(batch)
    await parts.engine.publish(parts.policy.version)
    await asyncio.sleep(0)
