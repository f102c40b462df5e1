"""How long a run will take: what the probe's episodes are made of, times what each of it takes on this machine.

Nothing is taken from the probe's own clock but the tools' time and the processor's for playing episodes: its first
replies compile kernels, and it samples fewer episodes at once than a step does. Speeds are measured warm
(airloop/speed.py), as for a budget.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airloop.budget import EpisodeSize, size_of_demonstrations

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


@dataclass(frozen=True)
class _Episodes:
    size: EpisodeSize
    longest: int  # of their sampled tokens
    outside_s: float  # a mean episode's seconds outside the model: opening, tools, scoring
    own_s: float  # its seconds of the one thread that plays all of them


def forecast(config: Config, probe: Probe, speed: Speed, ranks: int = 1) -> Forecast:
    """Of the run of this config, from episodes of it; `ranks` share the work."""
    played = [t for t in probe.trajectories if t.turns]
    told = _Episodes(
        size_of_demonstrations([t for t in played if t.branches]),
        max(t.sampled_tokens for t in played),
        statistics.fmean(max(0.0, t.seconds - sum(x.times.queue + x.times.model for x in t.turns)) for t in played),
        probe.own_s,
    )
    o, evaluation = config.orchestrator, config.orchestrator.eval
    size = told.size
    batch = o.batch_size * o.oversampling_factor / ranks
    trained = o.batch_size * (size.prompt / o.rollouts_per_example + size.sampled + size.shown) / ranks
    at_once = max(1, o.max_concurrent // ranks)
    step = _sampling_s(at_once, told, speed, batch, o.rollouts_per_example)
    step += config.trainer.loss.passes * trained / speed.train
    held_out = evaluation.num_examples * evaluation.rollouts_per_example / ranks
    return Forecast(
        step,
        _sampling_s(at_once, told, speed, held_out, evaluation.rollouts_per_example),
        config.max_steps,
        2 + (config.max_steps // evaluation.interval if evaluation.interval else 0),
    )


def _sampling_s(most: int, told: _Episodes, speed: Speed, episodes: float, group: int) -> float:
    """`group` episodes have a prompt in common; `most` are played at once."""
    if not episodes:
        return 0.0
    at_once = min(episodes, most)
    # Who has ended makes place for the next, so only the last ones are waited for.
    longest = told.longest + (episodes / at_once - 1) * told.size.sampled
    prompts = episodes * (told.size.prompt / group + told.size.shown)
    decoding = speed.decoding_s(longest, episodes * told.size.sampled)
    return decoding + prompts / speed.prompt + max(episodes / at_once * told.outside_s, episodes * told.own_s)
