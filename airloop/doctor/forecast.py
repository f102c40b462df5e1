"""How long a run will take: what the probe's episodes are made of, times what each of it takes on this machine
(airloop/costs.py).

Nothing is taken from the probe's own clock but the tools' time and the processor's for playing episodes: its first
replies compile kernels, and it samples fewer episodes at once than a step does. Speeds are measured warm
(airloop/speed.py), as for a budget.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airloop.costs import EpisodeSize, asked_for, costs_of, size_of_demonstrations
from airloop.evaluation import wants_base

if TYPE_CHECKING:
    from airloop.config import Config
    from airloop.doctor.probe import Probe
    from airloop.speed import Speed


@dataclass(frozen=True)
class Forecast:
    step_s: float
    evaluation_s: float
    steps: int
    evaluations: int

    @property
    def total_s(self) -> float:
        return self.steps * self.step_s + self.evaluations * self.evaluation_s


def forecast(config: Config, probe: Probe, speed: Speed, ranks: int = 1) -> Forecast:
    """Of the run of this config, from episodes of it; `ranks` share the work."""
    costs = costs_of(config, speed, size_of(probe), ranks=ranks, evaluates_base=wants_base(probe.parts, config))
    amounts = asked_for(config, warmstart=False)
    return Forecast(costs.step(amounts), costs.evaluation(amounts), amounts.steps, costs.evaluations(amounts))


def size_of(probe: Probe) -> EpisodeSize:
    """Of episodes of the policy itself, which have been timed."""
    played = [t for t in probe.trajectories if t.turns]
    return replace(
        size_of_demonstrations([t for t in played if t.branches]),
        longest=max(t.sampled_tokens for t in played),
        outside_s=statistics.fmean(
            max(0.0, t.seconds - sum(x.times.queue + x.times.model for x in t.turns)) for t in played
        ),
        own_s=probe.own_s,
    )
