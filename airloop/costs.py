"""What a run takes: seconds of each of its parts, by the speed of the machine and the size of its episodes.

One model for all who ask: a budget of minutes, which plans by it (airloop/budget.py), and the doctor, who says how long
a run will be (airloop/doctor/forecast.py). Sampling beside training is reckoned as if the two took turns: the most that
it can take.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airloop.config import Config
    from airloop.speed import Speed
    from airloop.types import Trajectory

# Seconds for the last checkpoint, the summary and the plot.
ENDING_S = 8.0
# What the doctor's probes and proofs compute, roughly: episodes sampled, tokens trained.
DOCTOR_EPISODES, DOCTOR_TRAINED = 24, 6000


@dataclass(frozen=True)
class Amounts:
    """How much of each thing that takes time."""

    warmstart_steps: int
    steps: int
    batch_size: int
    num_examples: int  # tasks of each evaluation


@dataclass(frozen=True)
class Overhead:
    """Seconds of a collection of episodes beside those of each of them, which others may share: a step of decoding
    costs something by itself, and tools are waited for. Episodes are counted in units: of a step's batch, or tasks of
    an evaluation."""

    last: float = 0.0  # once: the longest episode is waited for
    decoding: float = 0.0  # as often as all places were taken: who has ended makes place for the next
    outside: float = 0.0  # likewise, unless the thread that plays all of them takes longer
    own: float = 0.0  # of that thread, for each unit
    at_once: float = math.inf  # units

    def seconds(self, units: float) -> float:
        if not units:
            return 0.0
        rounds = max(1.0, units / self.at_once)
        return self.last + rounds * self.decoding + max(rounds * self.outside, units * self.own)

    def times(self, factor: float) -> Overhead:
        return Overhead(
            factor * self.last, factor * self.decoding, factor * self.outside, factor * self.own, self.at_once
        )


@dataclass(frozen=True)
class Costs:
    """Seconds of one unit of each, and of what cannot be made smaller."""

    warmstart_step: float
    episode: float  # sampled in a step
    trained_episode: float
    evaluated_task: float
    fixed: float = 0.0
    interval: int = 0  # steps between evaluations, beside the one before and the one after; 0: none
    evaluates_base: bool = False  # and another one, before the supervised start's
    sampling: Overhead = Overhead()  # of a step
    evaluating: Overhead = Overhead()

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        for name in ("sampling", "evaluating"):
            if math.isinf(found[name]["at_once"]):  # the default, which JSON has no word for
                del found[name]["at_once"]
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Costs:
        parts = {name: Overhead(**found[name]) for name in ("sampling", "evaluating")}
        return cls(**{**found, **parts})

    def times(self, factor: float) -> Costs:
        """On a machine that has become slower by this factor, or quicker."""
        names = ("warmstart_step", "episode", "trained_episode", "evaluated_task", "fixed")
        slower = replace(self, **{name: factor * getattr(self, name) for name in names})
        return replace(slower, sampling=self.sampling.times(factor), evaluating=self.evaluating.times(factor))

    def total(self, a: Amounts) -> float:
        return self.fixed + self.warmstart(a) + self.run(a)

    def run(self, a: Amounts) -> float:
        """From the first evaluation to the last."""
        return a.steps * self.step(a) + self.evaluations(a) * self.evaluation(a)

    def evaluations(self, a: Amounts) -> int:
        return 2 + self.evaluates_base + (a.steps // self.interval if self.interval else 0)

    def warmstart(self, a: Amounts) -> float:
        return a.warmstart_steps * self.warmstart_step

    def step(self, a: Amounts) -> float:
        return a.batch_size * (self.episode + self.trained_episode) + self.sampling.seconds(a.batch_size)

    def evaluation(self, a: Amounts) -> float:
        return a.num_examples * self.evaluated_task + self.evaluating.seconds(a.num_examples)


@dataclass(frozen=True)
class EpisodeSize:
    """Tokens of a typical episode: of its first prompt, sampled, and shown in between."""

    prompt: float
    sampled: float
    shown: float
    longest: float = 0.0  # sampled tokens of the longest among those that are played together; 0: all are alike
    outside_s: float = 0.0  # its seconds outside the model: opening, tools, scoring
    own_s: float = 0.0  # its seconds of the one thread that plays all of them


def size_of_demonstrations(rows: Sequence[Trajectory]) -> EpisodeSize:
    """Demonstrations are episodes of the same tasks, in the form that the policy will have. Where a history was
    rewritten there are several branches, and each is computed."""
    prompts, sampled, others = [], [], []
    for trajectory in rows:
        first, *_ = branches = trajectory.branches
        own = sum(sum(branch.train) for branch in branches)
        prompt = first.train.index(True) if any(first.train) else len(first.train)
        prompts.append(prompt)
        sampled.append(own)
        others.append(sum(len(branch.tokens) for branch in branches) - prompt - own)
    return EpisodeSize(*(statistics.fmean(values) for values in (prompts, sampled, others)))


def size_by_config(config: Config, prompt: int, turns: int) -> EpisodeSize:
    """Without any episode to look at: half of what a reply and an episode may be."""
    room = max(1, config.seq_len - prompt)
    sampled = min(turns * config.orchestrator.sampling.max_tokens, room) / 2
    return EpisodeSize(prompt, sampled, min(sampled / 2, room - sampled))


def costs_of(
    config: Config,
    speed: Speed,
    size: EpisodeSize,
    demonstration_tokens: float = 0.0,
    proofs: bool = False,
    ranks: int = 1,
    evaluates_base: bool = False,
) -> Costs:
    """`demonstration_tokens` is what one demonstration adds to a supervised step, its share of prompts included.
    `ranks` share episodes and rows; the supervised start is made by one of them, and so is what the doctor does."""
    o, evaluation = config.orchestrator, config.orchestrator.eval
    decoding_s, reply_s = speed.decoding

    def sampled(group: int) -> float:
        """An episode, of as many that have a prompt in common."""
        return reply_s * size.sampled + (size.prompt / group + size.shown) / speed.prompt

    def overhead(episodes: float, most: int) -> Overhead:
        """Where so many episodes are a unit, and at most so many are under way."""
        last = decoding_s * max(0.0, (size.longest or size.sampled) - size.sampled)
        return Overhead(last, decoding_s * size.sampled, size.outside_s, episodes * size.own_s, most / episodes)

    group = o.rollouts_per_example
    trained = config.trainer.loss.passes * (size.prompt / group + size.sampled + size.shown) / speed.train
    doctor = DOCTOR_EPISODES * sampled(group) + overhead(1, o.max_concurrent).seconds(DOCTOR_EPISODES)
    doctor += DOCTOR_TRAINED / speed.train
    # Each rank plays its share: all that are sampled, of which some may be left out, and all episodes of a task.
    at_once, drawn, held_out = (
        max(1, o.max_concurrent // ranks),
        o.oversampling_factor / ranks,
        evaluation.rollouts_per_example / ranks,
    )
    return Costs(
        config.warmstart.batch_size * demonstration_tokens / speed.train if config.warmstart else 0.0,
        drawn * sampled(group),
        trained / ranks,
        held_out * sampled(evaluation.rollouts_per_example),
        ENDING_S + (doctor if proofs else 0.0),
        evaluation.interval,
        evaluates_base,
        overhead(drawn, at_once),
        overhead(held_out, at_once),
    )


def asked_for(config: Config, warmstart: bool) -> Amounts:
    """What the config asks for; `warmstart`: its supervised start is still to be made."""
    o = config.orchestrator
    steps = config.warmstart.steps if config.warmstart and warmstart else 0
    return Amounts(steps, config.max_steps, o.batch_size, o.eval.num_examples)
