"""What a sampler is told, and what it returns: groups for training, episodes of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from airloop.chat.transcript import Strategy
from airloop.engine.base import Engine, Sampling
from airloop.envs.base import Environment
from airloop.rollout.episode import FINISH_S
from airloop.seeds import episode_seed
from airloop.types import Agent, Group, Task, Trajectory

Save = Callable[[Trajectory, int], None]  # the trajectory and the step it belongs to
AgentFactory = Callable[[Environment, Task, int], Agent]  # a fresh agent for a task and an episode's seed
Place = tuple[int, int]  # the group's index in the step, the sample's number in the group
EpisodeSlot = Callable[[], AbstractAsyncContextManager[None]]  # what an episode waits for before it begins


@dataclass(frozen=True)
class RolloutSettings:
    sampling: Sampling
    rollouts_per_example: int
    seed: int = 0
    max_concurrent: int = 64
    strategy: Strategy = "interleaved"
    parser: str = "auto"
    deadline_s: float = 3600.0
    finish_s: float = FINISH_S
    retries: int = 2  # after an infra_error
    retry_wait_s: float = 1.0  # doubled each time
    online_difficulty_filtering: bool = False
    oversampling_factor: float = 1.0  # at most this many times the planned groups are sampled


@dataclass(frozen=True)
class Dropped:
    group: Group
    reason: Literal["infra_error", "no_signal"]


@dataclass(frozen=True)
class Collected:
    groups: tuple[Group, ...]
    dropped: tuple[Dropped, ...]
    stats: Mapping[str, float]
    spoilt: tuple[Trajectory, ...] = ()  # attempts that ended in infra_error, those that were repeated included

    @classmethod
    def joined(cls, parts: Sequence[Collected], **stats: float) -> Collected:
        """As if they had been collected together; `stats` are those that are no sums."""
        names = dict.fromkeys(name for part in parts for name in part.stats)
        return cls(
            tuple(group for part in parts for group in part.groups),
            tuple(dropped for part in parts for dropped in part.dropped),
            {name: sum(part.stats.get(name, 0.0) for part in parts) for name in names} | stats,
            tuple(trajectory for part in parts for trajectory in part.spoilt),
        )


@dataclass(frozen=True)
class Evaluated:
    trajectories: tuple[Trajectory, ...]  # scored ones, by task and then by sample
    lost: tuple[Trajectory, ...]  # infra_error after all retries: they have no score
    stats: Mapping[str, float]


@dataclass(frozen=True)
class Share:
    """What one rank has sampled of some groups; its counts are of the whole collection so far."""

    ended: Mapping[Place, Trajectory]
    groups: Mapping[int, Group]
    dropped: Mapping[int, Dropped]
    spoilt: Mapping[Place, list[Trajectory]]
    counts: Counter[str]


def seeds_of(
    plan: Sequence[Task], settings: RolloutSettings, step: int, refusals: int = 0, first: int = 0
) -> dict[Place, int]:
    """A task that is planned twice gets further samples, not the same ones again."""
    seen: Counter[tuple[str, str]] = Counter()
    seeds: dict[Place, int] = {}
    for index, task in enumerate(plan, first):
        for sample in range(settings.rollouts_per_example):
            number = seen[task.env, task.id]
            seeds[index, sample] = episode_seed(settings.seed, step, task.env, task.id, number, refusals)
            seen[task.env, task.id] += 1
    return seeds


def counted(ended: Collection[Trajectory], dropped: Iterable[Dropped], totals: Mapping[str, int]) -> dict[str, float]:
    """What became of the episodes."""
    endings = Counter(trajectory.ending for trajectory in ended)
    reasons = Counter(one.reason for one in dropped)
    return {
        "episodes": len(ended),
        "reused": totals["reused"],
        "infra_errors": totals["infra_errors"],  # attempts that failed, also to score a group
        "retried": totals["retried"],  # of these, how many were followed by another attempt
        "abandoned_tokens": totals["abandoned_tokens"],  # of replies that were cut off while being written
        "lost": endings["infra_error"],  # episodes that failed in every attempt: in no group and no mean
        "dropped_infra_error": reasons["infra_error"],
        "dropped_no_signal": reasons["no_signal"],
        **{f"ended_{ending}": count for ending, count in sorted(endings.items())},
    }


def abandoned(engine: Engine | None) -> int:
    """Tokens that the engine sampled for replies it could not return."""
    return engine.counters.abandoned if engine else 0
