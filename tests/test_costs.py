"""One model says what a run takes, to a budget that plans by it and to the doctor; it counts what the run will do."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from airloop.config import Config, load_config
from airloop.costs import ENDING_S, EpisodeSize, asked_for, costs_of
from airloop.doctor import forecast as forecasts
from airloop.doctor.forecast import forecast
from airloop.speed import Speed

SPEED = Speed(prompt=100.0, decode=40.0, train=50.0)  # a reply takes as long beside others
SIZE = EpisodeSize(prompt=80.0, sampled=20.0, shown=10.0)
DEMONSTRATION = 25.0  # tokens
GRID: dict[str, tuple[Any, ...]] = {
    "orchestrator.rollouts_per_example": (4, 8),
    "trainer.loss.passes": (1, 3),
    "orchestrator.oversampling_factor": (1.0, 2.0),
    "orchestrator.eval.rollouts_per_example": (1, 3),
    "orchestrator.eval.interval": (0, 4),
    "orchestrator.max_staleness": (0, 1),
    "warmstart.steps": (0, 5),
}
ALWAYS = {"max_steps": 10, "orchestrator.batch_size": 16, "orchestrator.eval.num_examples": 7}
MORE: dict[str, dict[str, str]] = {
    "trainer.loss.passes": {"trainer.loss.anchor": "sampler"},
    "orchestrator.max_staleness": {"deterministic": "false", "trainer.loss.anchor": "sampler"},
    "orchestrator.oversampling_factor": {"orchestrator.buffer.online_difficulty_filtering": "true"},
}


def config_of(values: tuple[Any, ...]) -> Config:
    said: dict[str, Any] = dict(ALWAYS)
    for (name, usual), value in zip(((n, v[0]) for n, v in GRID.items()), values, strict=True):
        if value != usual:
            said |= {name: value} | MORE.get(name, {})
    return load_config([word for name, value in said.items() for word in (f"--{name}", str(value))])


def counted(config: Config, ranks: int) -> tuple[float, float]:
    """Seconds of the supervised start and of the run, counted episode by episode."""
    o, seconds = config.orchestrator, 0.0
    group = o.rollouts_per_example

    def played(tasks: int, episodes: int) -> float:
        """The prompt of each task is computed once."""
        sampled, shown = (tasks * episodes * tokens for tokens in (SIZE.sampled, SIZE.shown))
        return sampled / SPEED.decode + (tasks * SIZE.prompt + shown) / SPEED.prompt

    def evaluated() -> float:
        return played(o.eval.num_examples, o.eval.rollouts_per_example) / ranks

    seconds += evaluated()
    for step in range(1, config.max_steps + 1):
        seconds += played(int(o.oversampling_factor * o.batch_size / group), group) / ranks
        rows = [SIZE.prompt + group * (SIZE.sampled + SIZE.shown)] * (o.batch_size // group)
        seconds += config.trainer.loss.passes * sum(rows) / SPEED.train / ranks
        if o.eval.interval and step % o.eval.interval == 0:
            seconds += evaluated()
    start = config.warmstart
    supervised = start.steps * start.batch_size * DEMONSTRATION / SPEED.train if start else 0.0
    return supervised, seconds + evaluated()


@pytest.mark.parametrize("ranks", [1, 2])
def test_budget_and_doctor_say_what_the_run_will_do(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "size_of", lambda probe: SIZE)
    probe: Any = SimpleNamespace(parts=None)
    for values in itertools.product(*GRID.values()):
        config = config_of(values)
        monkeypatch.setattr(forecasts, "wants_base", lambda parts, config: False)
        costs = costs_of(config, SPEED, SIZE, DEMONSTRATION, proofs=False, ranks=ranks)
        amounts = asked_for(config, warmstart=True)
        told = forecast(config, probe, SPEED, ranks)
        supervised, run = counted(config, ranks)
        assert costs.warmstart(amounts) == pytest.approx(supervised), values
        assert costs.run(amounts) == pytest.approx(run) == told.total_s, values
        assert costs.total(amounts) == pytest.approx(ENDING_S + supervised + run), values
        assert (costs.step(amounts), costs.evaluation(amounts)) == (told.step_s, told.evaluation_s), values


def test_an_evaluation_of_the_model_before_its_supervised_start_is_one_more() -> None:
    config = config_of(tuple(usual for usual, *_ in GRID.values()))
    amounts = asked_for(config, warmstart=False)
    costs, more = (costs_of(config, SPEED, SIZE, evaluates_base=base) for base in (False, True))
    assert more.run(amounts) == pytest.approx(costs.run(amounts) + costs.evaluation(amounts))


def test_what_episodes_share_is_counted_once_for_all_that_are_played_together() -> None:
    """A step of decoding takes a tenth of a second and a hundredth for each reply in it."""
    speed = Speed(1e9, decode=8 / 0.18, train=1e9, alone=1 / 0.11, together=8)
    size = EpisodeSize(0, 20.0, 0, longest=50.0, outside_s=3.0, own_s=0.5)

    def step_s(batch: int, most: int) -> float:
        words = {"orchestrator.batch_size": batch, "orchestrator.max_concurrent": most}
        config = load_config([word for name, value in words.items() for word in (f"--{name}", str(value))])
        return costs_of(config, speed, size).step(asked_for(config, warmstart=False))

    # the longest; each reply; tools beside each other, or the thread that plays all
    assert step_s(16, 64) == pytest.approx(50 * 0.1 + 16 * 20 * 0.01 + 16 * 0.5, rel=1e-4)
    assert step_s(16, 4) == pytest.approx((50 + 3 * 20) * 0.1 + 16 * 20 * 0.01 + 4 * 3.0, rel=1e-4)
