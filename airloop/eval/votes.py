"""Several episodes of each task: how good the answer is that most of them gave, and how good the best of them.

The first is what a user gets who asks so many times and takes the commonest answer; the second is how far training
could still lift what one reply gives. Both are over tasks, as every interval of an evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from airloop.envs.base import Environment
from airloop.stats.intervals import Interval, mean_interval
from airloop.success import METRIC
from airloop.types import Trajectory

MAJORITY, BEST = "majority", "best"


def votes(trajectories: Iterable[Trajectory], envs: Mapping[str, Environment]) -> dict[str, Interval]:
    """By name; nothing where tasks have one episode each, or where nobody says what success is."""
    tasks: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        if METRIC in trajectory.metrics:
            tasks.setdefault((trajectory.task.env, trajectory.task.id), []).append(trajectory)
    if not any(len(episodes) > 1 for episodes in tasks.values()):
        return {}
    found = {BEST: [max(t.metrics[METRIC] for t in episodes) for episodes in tasks.values()]}
    answers = {key: [envs[key[0]].answer_of(t) for t in episodes] for key, episodes in tasks.items()}
    if all(any(given is not None for key in tasks if key[0] == env for given in answers[key]) for env, _ in tasks):
        found[MAJORITY] = [majority(answers[key], episodes) for key, episodes in tasks.items()]
    return {name: mean_interval(values, share=True) for name, values in found.items()}


def majority(answers: Sequence[str | None], episodes: Sequence[Trajectory]) -> float:
    """The success of the commonest answer; of several that are equally common, their mean, as a lot would give. Who
    answers nothing has no vote, and where nobody has one nothing was found."""
    counted = Counter(answer for answer in answers if answer is not None)
    if not counted:
        return 0.0
    most = max(counted.values())
    winners = [answer for answer, count in counted.items() if count == most]
    return sum(_success(answer, answers, episodes) for answer in winners) / len(winners)


def _success(answer: str, answers: Sequence[str | None], episodes: Sequence[Trajectory]) -> float:
    """Of who gave it: equal answers may still be graded apart, as where one of them cites another document."""
    given = [t.metrics[METRIC] for said, t in zip(answers, episodes, strict=True) if said == answer]
    return sum(given) / len(given)
