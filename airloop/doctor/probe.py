"""The probe: a few groups of real episodes, sampled once through the real sampler, and looked at by many checks."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from airloop.errors import AirError
from airloop.types import Group, Trajectory, Turn

if TYPE_CHECKING:
    from airloop.assemble import Parts
    from airloop.config import Config
    from airloop.doctor.case import Case
    from airloop.learn.batches import Row
    from airloop.rollout.sampler import RolloutSettings

# Two groups of the usual size: enough replies to tell "never" from "seldom" (see the checks), and on two cores with
# the default model about 20 s.
EPISODES = 16
LARGEST_GROUP = 8
# Longest that a round of episodes may take; what has not ended then is scored as it stands. On a GPU it is an hour of
# that GPU which is at stake, and its tasks are the slow ones.
ROUND_S = {"cpu": 40.0, "cuda": 120.0}
# Rewards that hardly differ are looked at again, up to this many rounds in all: of 48 episodes, all are alike only if
# fewer than one in 16 would be different (at 95 %).
ROUNDS = 3
# A group's commonest reward, as a share of the group, averaged over groups. At 0.9 a binary reward is about 5 % or
# 95 %, and two of three groups of eight have no signal.
STUCK = 0.9
# Tokens of the probe's episodes that are computed again by the trainer: seconds on two cores.
TRAINER_TOKENS = 2048


@dataclass
class Probe:
    """`groups` have a score; of `lost` episodes the machinery failed. `seconds` of `started` episodes, by the clock."""

    parts: Parts
    groups: tuple[Group, ...]
    lost: tuple[Trajectory, ...]
    seconds: float
    started: int
    limit_s: float  # an episode's deadline in the probe

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def turns(self) -> list[Turn]:
        """Those that were played to their end: the one that a deadline cuts has no observation."""
        return [turn for t in self.trajectories for turn in t.turns if turn.sampled and turn.observations]

    @property
    def cut(self) -> int:
        """Episodes that the probe ended before the config would have."""
        shorter = self.limit_s < self.parts.config.orchestrator.episode_timeout_s
        return sum(t.ending == "deadline" for t in self.trajectories) if shorter else 0

    @property
    def stuck(self) -> float:
        return stuck_share(self.groups)

    @cached_property
    def rows(self) -> list[Row]:
        """What the trainer makes of the episodes with the most turns, within TRAINER_TOKENS."""
        from airloop.learn.advantages import trajectory_rows

        found: list[Row] = []
        for trajectory in sorted(self.trajectories, key=lambda t: -len(t.turns)):
            own = trajectory_rows(trajectory, [1.0], 1.0)
            if found and sum(len(row.tokens) for row in [*found, *own]) > TRAINER_TOKENS:
                continue
            found += [row for row in own if any(row.train)]
        if not found:
            raise AirError(
                f"Not one reply was sampled in the {self.seconds:.0f} s of the probe.",
                "see what takes the time (`air doctor --only D6,G9`); --skip-proofs goes on without proofs.",
            )
        return found

    @cached_property
    def trainer(self) -> tuple[dict[str, list[float]], float]:
        """The trainer's log-probs of the rows' trained tokens, by row, and the seconds they took."""
        began = time.perf_counter()
        return self.parts.learner.logprobs(self.rows), time.perf_counter() - began


def run_probe(case: Case) -> Probe:
    """Samples as the first step will, and leaves nothing behind: no file, no cached prefix, no random state."""
    from airloop.learn.checkpoints import random_states, set_random_states

    parts = case.parts
    states = random_states()
    try:
        probe = case.wait(_sample(parts))
    finally:
        set_random_states(states)
    if not probe.groups:
        first = next((t.error for t in probe.lost if t.error), "no episode was started")
        raise AirError(
            f"None of the probe's {probe.started} episodes could be scored. The first one: {first}",
            "mend what it names; nothing can be learned from episodes that the machinery spoils.",
        )
    return probe


async def _sample(parts: Parts) -> Probe:
    from airloop.rollout.sampler import Sampler
    from airloop.rollout.schedule import TaskSchedule

    config, tokenizer = parts.config, parts.loaded.tokenizer
    schedule = TaskSchedule(parts.envs, "train", config.seed)
    members = min(config.orchestrator.rollouts_per_example, LARGEST_GROUP)
    width = min(EPISODES // members, len(schedule))
    settings = _settings(parts, members, width)
    ended: list[Trajectory] = []

    async def collect(number: int, width: int) -> tuple[Group, ...]:
        save = lambda t, _: ended.append(t)  # noqa: E731
        sampler = Sampler(parts.engine, tokenizer, parts.envs, settings, save, None, parts.world)
        return (await sampler.collect(number, schedule.batch(number, width), parts.policy.version)).groups

    began = time.monotonic()
    groups, started, rounds = [*await collect(0, width)], width * members, 1
    if not groups and settings.deadline_s < config.orchestrator.episode_timeout_s:
        # A world may take longer to open than the probe has: one group gets the time that a run would give it.
        settings = replace(settings, deadline_s=config.orchestrator.episode_timeout_s)
        groups, started = [*await collect(0, 1)], started + members
    while rounds < ROUNDS and _again(parts, groups, time.monotonic() - began):
        groups += await collect(rounds, width)
        started, rounds = started + width * members, rounds + 1
    seconds = time.monotonic() - began
    await parts.engine.publish(parts.engine.version)  # no prefix stays cached: the run starts as if nothing had been
    lost = tuple(t for t in ended if t.ending == "infra_error")
    return Probe(parts, tuple(groups), lost, seconds, started, settings.deadline_s)


def _settings(parts: Parts, members: int, width: int) -> RolloutSettings:
    from airloop.assemble import rollout_settings

    settings = rollout_settings(parts.config, parts.envs, parts.loaded.tokenizer.stop_ids, parts.world.size)
    waves = -(-width * members // (settings.max_concurrent * parts.world.size))
    return replace(
        settings,
        rollouts_per_example=members,
        deadline_s=min(settings.deadline_s, _round_s(parts) / waves),
        retries=min(settings.retries, 1),  # to see that it fails is enough
        online_difficulty_filtering=False,  # groups without signal are what is looked for
    )


def _round_s(parts: Parts) -> float:
    return ROUND_S.get(parts.policy.device.type, ROUND_S["cpu"])


def _again(parts: Parts, groups: Sequence[Group], seconds: float) -> bool:
    """Rewards hardly differ, and there is time to see whether that was chance."""
    judged = bool(groups) and not before_warmstart(parts.config)
    return judged and stuck_share(groups) >= STUCK and seconds < _round_s(parts) / 2


def stuck_share(groups: Sequence[Group]) -> float:
    """How much of a group has the group's commonest reward; the mean over groups."""
    commonest = [Counter(round(r, 9) for r in g.rewards).most_common(1)[0][1] / len(g.rewards) for g in groups]
    return statistics.fmean(commonest)


def before_warmstart(config: Config) -> bool:
    """Whether the policy at hand is not yet the one that the run will train: a supervised start comes first. (A run
    that has made it has it as its adapter, or as its model.)"""
    if config.warmstart is None or config.model.adapter:
        return False
    from pathlib import Path

    return not (Path(config.model.name).parent / "done.json").is_file()
