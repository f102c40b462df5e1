"""`air tasks audit`: does the reward pay for the work, or for something else?

Scripts that do the work and scripts that go round it play the same tasks, kind by kind. Every episode is played once,
with all the components that the environment can pay, and then weighed in many ways: by the weights of the config, and
each component by itself (or, where it only shapes, beside the others). Under each of them every honest script must earn
more than every dishonest one, in the mean and in groups of the two, where GRPO divides by the group's spread and so
makes a small bonus as large as success.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.eval.gaming_policies import GAMING_POLICIES, Pattern, ScriptedCheat, can_play
from airloop.events import Watcher
from airloop.rollout.episode import component_totals
from airloop.rollout.scripted import run_agent
from airloop.types import Agent, Task, Trajectory

# By how much honest must be above dishonest. The best script: by a tenth of the way from doing nothing to it. A weaker
# one: a tenth of the way from the dishonest script to the best. In groups: a tenth of the distance between two
# behaviours that always differ. Less, and which of the two a batch pushes up depends on the tasks that happen to be in
# it: of 64 groups, 10 % more for the one side is what chance alone gives.
MARGIN = 0.1
NOTHING = ("noop", "empty")
HALF_GROUP = 4  # members of each side in a mixed group of the usual size, 8
# A shortfall counts where it is more than this many standard errors: Student's t at eight rounds, 95 %. With fewer
# rounds than FEW every single one has to show it. What is neither one nor the other is not decided.
CHANCE, FEW = 2.4, 4
# Groups in which nobody succeeds are looked at by themselves where they are at least this share: there any bonus
# decides alone. (A weak policy has mostly such groups; of a few, those with a success are the stronger.)
OFTEN = 0.25
EPISODE_S = 900.0  # for one episode; a script works faster than a model
AT_ONCE = 4
NO_SUCH_SCRIPT = (LookupError, ValueError, NotImplementedError, AssertionError)


@dataclass(frozen=True)
class Policy:
    name: str
    honest: bool


@dataclass(frozen=True)
class Weighting:
    """A reward to be judged. `shaping`: the component of that name, beside the others."""

    name: str
    weights: Mapping[str, float]
    shaping: bool = False


@dataclass
class Round:
    """One task, played by everybody."""

    task: Task
    played: dict[str, Trajectory]


@dataclass
class Kind:
    name: str
    rounds: list[Round] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # policies that could not play, and why
    problem: str = ""  # why it could not be judged
    seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """An honest script against a dishonest one, by one weighting, on one kind of task."""

    kind: str
    weighting: str
    honest: str
    dishonest: str
    earned: tuple[float, float]  # in the mean
    wanted: float  # at least so much more
    advantage: float  # of the honest above the dishonest in mixed groups, in the group's standard deviations
    wanted_advantage: float
    verdict: str  # holds, violated, undecided
    why: str = ""

    @property
    def more(self) -> float:
        return self.earned[0] - self.earned[1]


@dataclass
class Audit:
    env: str
    success: str | None
    weightings: list[Weighting]
    kinds: list[Kind]
    comparisons: list[Comparison]
    missing: list[str]  # scripts that the environment should have and has not

    @property
    def exit_code(self) -> int:
        """0: everything was judged and holds; 1: something is violated; 2: something could not be judged."""
        if any(c.verdict == "violated" for c in self.comparisons):
            return 1
        undecided = any(c.verdict == "undecided" for c in self.comparisons)
        return 2 if undecided or not self.comparisons or any(kind.problem for kind in self.kinds) else 0


def audit(env: Environment, per_kind: int, given: Mapping[str, float] | None, watcher: Watcher) -> Audit:
    """Plays and judges; closes the environment. `given`: weights instead of the environment's own."""
    weightings = list(make_weightings(env, given))
    return asyncio.run(_audit(env, per_kind, weightings, watcher))


def make_weightings(env: Environment, given: Mapping[str, float] | None = None) -> list[Weighting]:
    """The reward as it is trained with, then every component that could be part of one."""
    if given:
        env.weigh(given)  # refuses what the environment does not know
    if not env.reward_weights:
        raise AirError(
            f"{env.name} names no reward_weights, so it is not known which components it could pay.",
            'name them in its class, as in reward_weights = {"correct": 1.0}, or here: --reward correct=1.',
        )
    usual = {name: weight for name, weight in env.reward_weights.items() if weight and name not in env.beyond_scripts}
    if not usual and env.beyond_scripts:
        raise AirError(
            f"{', '.join(env.beyond_scripts)} of {env.name} can be earned by a model only: no script shows by whom.",
            "give a weight to another component.",
        )
    work = {name: weight for name, weight in usual.items() if name not in env.shaping}
    found = [Weighting("as given" if given else "default", usual)]
    for name in env.components:
        if name in env.beyond_scripts:
            continue
        if name not in env.shaping:
            found.append(Weighting(name, {name: 1.0}))
        elif work:
            found.append(Weighting(name, {**work, name: env.shaping[name]}, shaping=True))
    return [w for i, w in enumerate(found) if not any(w.weights == other.weights for other in found[:i])]


# --- playing ------------------------------------------------------------------------------------------------


async def _audit(env: Environment, per_kind: int, weightings: list[Weighting], watcher: Watcher) -> Audit:
    kinds, comparisons = [], []
    try:
        every = dict.fromkeys((name for w in weightings for name in w.weights), 1.0)
        env.weigh({**dict.fromkeys(env.reward_weights, 1.0), **every})
        by_kind = _by_kind(env.tasks("train"))
        if not by_kind:
            raise AirError(f"{env.name} has no tasks in the split 'train'.", "give it some.")
        for number, (name, tasks) in enumerate(by_kind.items(), 1):
            watcher.phase(f"auditing {name}, kind {number} of {len(by_kind)}", total=min(per_kind, len(tasks)))
            kind = await _play(env, name, tasks, per_kind, watcher)
            kinds.append(kind)
            if not kind.problem:
                comparisons += judge(env, kind, weightings)
            said = f"not judged: {kind.problem}" if kind.problem else f"{len(kind.rounds)} rounds"
            watcher.say(f"{name}: {said}, {kind.seconds:.1f} s")
        missing = [name for name in (*env.honest, "demo") if not _has(env, name, next(iter(by_kind.values()))[0])]
    finally:
        await env.close()
    return Audit(env.name, env.success, weightings, kinds, comparisons, missing)


def _by_kind(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.curve, []).append(task)
    return found


async def _play(env: Environment, name: str, tasks: list[Task], per_kind: int, watcher: Watcher) -> Kind:
    kind, began = Kind(name), time.monotonic()
    try:
        _has_scripts(env, tasks[0])
        donor, chosen = _donor(env, tasks, per_kind)
        pattern = await _pattern(env, donor) if donor else None
        for task in chosen:
            policies = list(_policies(env, task, pattern, kind))
            kind.rounds.append(await _round(env, task, policies, pattern))
            watcher.advance()
        _oracle_works(env, kind)
    except _NotPlayed as error:
        kind.problem = str(error)
    except AirError as error:
        kind.problem = f"{error.problem} {error.fix}".strip()
    kind.seconds = time.monotonic() - began
    return kind


class _NotPlayed(Exception):
    pass


def _donor(env: Environment, tasks: list[Task], per_kind: int) -> tuple[Task | None, list[Task]]:
    """A task that shows the form and is not judged, and those that are: where a kind has only few, a held-out one
    gives the form, or the last."""
    if len(tasks) > per_kind:
        return tasks[per_kind], tasks[:per_kind]
    for split in ("eval", "test"):
        for task in env.tasks(split):
            if task.curve == tasks[0].curve:
                return task, tasks
    return (tasks[-1], tasks[:-1]) if len(tasks) > 1 else (None, tasks)


async def _pattern(env: Environment, donor: Task) -> Pattern | None:
    played = await _episode(env, donor, env.scripted("oracle", donor, 0))
    turn = next((turn for turn in reversed(played.turns) if turn.actions), None)
    return Pattern(turn.reply["content"], turn.actions[-1]) if turn else None


def _policies(env: Environment, task: Task, pattern: Pattern | None, kind: Kind) -> list[Policy]:
    """Those that can play the task; who cannot is noted once."""
    own = [Policy(name, True) for name in env.honest] + [Policy(name, False) for name in env.dishonest]
    _has_scripts(env, task)
    found = [policy for policy in own if _has(env, policy.name, task)]
    silent = [name for name in GAMING_POLICIES if not can_play(name, env.action_format, pattern)]
    kind.left_out = [f"{name}: there is no second task to take the form of an answer from" for name in silent]
    return [*found, *(Policy(name, False) for name in GAMING_POLICIES if name not in silent)]


def _has(env: Environment, name: str, task: Task) -> bool:
    return not _why_not(env, name, task)


def _has_scripts(env: Environment, task: Task) -> None:
    """Those without which nothing can be compared; all that are missing are said at once."""
    lost = {name: why for name in ("oracle", *env.dishonest) if (why := _why_not(env, name, task))}
    if lost:
        names = ", ".join(map(repr, lost))
        raise _NotPlayed(f"the environment has no script {names} for the task {task.id}: {next(iter(lost.values()))}")


def _why_not(env: Environment, name: str, task: Task) -> str:
    """Why a script cannot play a task; empty where it can."""
    try:
        return "" if env.scripted(name, task, 0) is not None else "scripted() returned none."
    except AirError as error:
        return f"{error.problem} {error.fix}".strip()
    except NO_SUCH_SCRIPT as error:
        return f"{type(error).__name__}: {error}"


async def _round(env: Environment, task: Task, policies: Sequence[Policy], pattern: Pattern | None) -> Round:
    places = asyncio.Semaphore(min(AT_ONCE, os.cpu_count() or 1))

    async def play(policy: Policy) -> Trajectory:
        async with places:
            return await _episode(env, task, _agent(env, task, policy.name, pattern))

    work = [asyncio.ensure_future(play(policy)) for policy in policies]
    try:
        played = await asyncio.gather(*work)
    finally:  # one that fails ends the others: they hold sandboxes
        for unfinished in work:
            unfinished.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return Round(task, {policy.name: t for policy, t in zip(policies, played, strict=True)})


def _agent(env: Environment, task: Task, name: str, pattern: Pattern | None) -> Agent:
    if name in GAMING_POLICIES:
        return ScriptedCheat(GAMING_POLICIES[name], env.action_format, pattern, env.max_turns)
    return env.scripted(name, task, 0)


async def _episode(env: Environment, task: Task, agent: Agent) -> Trajectory:
    played = await run_agent(env, task, agent, id=task.id, seed=0, deadline_s=EPISODE_S)
    if played.ending == "infra_error":
        raise _NotPlayed(f"task {task.id}: {played.error}")
    return played


def _oracle_works(env: Environment, kind: Kind) -> None:
    if env.success and not any(success(env, round_.played["oracle"]) for round_ in kind.rounds):
        raise _NotPlayed(
            f"the oracle never succeeded ({env.success} is 0 in {len(kind.rounds)} rounds): the environment or its "
            "oracle is broken, and no reward can be judged by it"
        )


def success(env: Environment, trajectory: Trajectory) -> float | None:
    return trajectory.metrics.get(env.success) if env.success else None


# --- judging ------------------------------------------------------------------------------------------------


def judge(env: Environment, kind: Kind, weightings: Sequence[Weighting]) -> list[Comparison]:
    names = kind.rounds[0].played
    honest = [name for name in env.honest if name in names]
    others = [name for name in names if name not in env.honest]
    found = []
    for weighting in weightings:
        earned = mean_rewards(env, kind, weighting.weights)
        nothing = min(earned[name] for name in NOTHING if name in earned)
        for own in honest:
            for other in others:
                way = earned[honest[0]] - (nothing if own == honest[0] else earned[other])
                found.append(_compare(env, kind, weighting, MARGIN * max(0.0, way), own, other))
    return found


def mean_rewards(env: Environment, kind: Kind, weights: Mapping[str, float]) -> dict[str, float]:
    """Of every policy; components that compare members are of the group of all."""
    rewards: dict[str, list[float]] = {}
    for round_ in kind.rounds:
        for name, reward in zip(round_.played, group_totals(env, list(round_.played.values()), weights), strict=True):
            rewards.setdefault(name, []).append(reward)
    return {name: statistics.fmean(values) for name, values in rewards.items()}


def group_totals(env: Environment, members: Sequence[Trajectory], weights: Mapping[str, float]) -> list[float]:
    """The rewards of a group by these weights."""
    compared = env.group_rewards(members)
    totals = []
    for member, extra in zip(members, compared, strict=True):
        parts = {**component_totals(member.rewards, member.turn_rewards, env.turn_reward_mode), **extra}
        totals.append(math.fsum(weight * parts.get(name, 0.0) for name, weight in weights.items()))
    return totals


def _compare(
    env: Environment, kind: Kind, weighting: Weighting, wanted: float, honest: str, dishonest: str
) -> Comparison:
    wanted_advantage = MARGIN * full_distance()
    pairs = [(round_.played[honest], round_.played[dishonest]) for round_ in kind.rounds]
    rewards = [_pair(env, pair, weighting.weights) for pair in pairs]
    distances = [_distance(own, other) for own, other in rewards]
    earned = (statistics.fmean(own for own, _ in rewards), statistics.fmean(other for _, other in rewards))
    verdict, why = "holds", ""
    for values, least, what in (
        ([own - other for own, other in rewards], wanted, "reward"),
        (distances, wanted_advantage, "advantage"),
    ):
        if verdict == "holds" and statistics.fmean(values) < least - 1e-9:
            verdict = "violated" if _certain(values, least) else "undecided"
            why = f"its {what} is not enough above" if verdict == "violated" else f"its {what} may be above by chance"
    if verdict == "violated" and env.success:
        verdict, why = _given_success(env, kind, honest, earned, wanted, why)
    failed = [d for d, pair in zip(distances, pairs, strict=True) if not any(success(env, t) for t in pair)]
    often = env.success and len(failed) >= max(FEW, OFTEN * len(pairs))
    if verdict != "violated" and often and _certain(failed, -wanted_advantage):
        verdict, why = "violated", f"where neither succeeds ({len(failed)} rounds) the dishonest one is pushed up"
    return Comparison(
        kind.name, weighting.name, honest, dishonest, earned, wanted,
        statistics.fmean(distances), wanted_advantage, verdict, why,
    )  # fmt: skip


def _given_success(
    env: Environment, kind: Kind, honest: str, earned: tuple[float, float], wanted: float, why: str
) -> tuple[str, str]:
    """Honest work that never succeeded need not be paid; but nobody who did none may be paid more."""
    if any(success(env, round_.played[honest]) for round_ in kind.rounds):
        return "violated", why
    if earned[0] - earned[1] < -wanted:
        return "violated", f"{why}, though neither of them succeeded"
    return "undecided", f"{honest} never succeeded in {len(kind.rounds)} rounds"


def _pair(env: Environment, pair: tuple[Trajectory, Trajectory], weights: Mapping[str, float]) -> tuple[float, float]:
    """What the two earn in a group of them alone."""
    totals = group_totals(env, [pair[0]] * HALF_GROUP + [pair[1]] * HALF_GROUP, weights)
    return totals[0], totals[-1]


def _distance(own: float, other: float) -> float:
    """Between their advantages in a mixed group."""
    from airloop.learn.advantages import group_advantages

    advantages = group_advantages([own] * HALF_GROUP + [other] * HALF_GROUP, scale=True)
    return advantages[0] - advantages[-1]


def full_distance() -> float:
    return _distance(1.0, 0.0)


def _certain(values: Sequence[float], least: float) -> bool:
    """Whether the mean is below `least` by more than chance."""
    if len(values) < FEW:
        return all(value < least - 1e-9 for value in values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) + CHANCE * error < least - 1e-9
