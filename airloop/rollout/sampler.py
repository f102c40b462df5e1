"""Many episodes at once: groups for training, runs for evaluation, one code path for both.

Every episode that ends reaches `save` exactly once, before anything else is done with it. On several ranks each samples
its share of the groups, and all of them return what all have sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airloop.chat.forest import Tokenizer
from airloop.chat.session import ChatSession
from airloop.engine.base import Engine
from airloop.envs.base import Environment
from airloop.ranks import Ranks
from airloop.rollout.agents import PolicyAgent
from airloop.rollout.collected import (
    AgentFactory,
    Collected,
    Dropped,
    EpisodeSlot,
    Evaluated,
    Place,
    RolloutSettings,
    Save,
    Share,
    abandoned,
    counted,
    seeds_of,
)
from airloop.rollout.episode import EpisodeDefect, compared, run_episode
from airloop.rollout.group_scoring import end_group, is_complete, scores_groups, waits_for_group
from airloop.rollout.program import EpisodeEndpoint, ProgramEnvironment, run_program, serve_policy
from airloop.rollout.schedule import Names, TaskSchedule
from airloop.rollout.task_pool import TaskPool
from airloop.serve.episode import ServedEpisode
from airloop.serve.served_agent import ServedAgent
from airloop.types import Agent, Group, Task, Trajectory
from airloop.waits import waiting

# Between a share's last deadline and its results: scoring, saving, a busy machine.
MARGIN_S = 300.0
EVALUATION = -1  # in place of the step in an evaluation's seeds: every evaluation meets the same draws


class Sampler:
    """`schedule` is where replacements for groups without signal come from. A sampler without an engine can
    still evaluate agents that it is given."""

    def __init__(
        self,
        engine: Engine | None,
        tokenizer: Tokenizer | None,
        envs: Mapping[str, Environment],
        settings: RolloutSettings,
        save: Save,
        schedule: TaskSchedule | None = None,
        ranks: Ranks | None = None,
        names: Names | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._envs = envs
        self._settings = settings
        self._save = save
        self._schedule = schedule
        self._ranks = ranks or Ranks()
        self._names = names or Names()  # of one process's memory: samplers whose episodes are seen together share it

    @property
    def policy(self) -> tuple[Engine, Tokenizer]:
        if self._engine is None or self._tokenizer is None:
            raise ValueError("this sampler has no engine, so no policy: give evaluate() an agent")
        return self._engine, self._tokenizer

    async def collect(
        self,
        step: int,
        plan: Sequence[Task],
        version: int,
        finished: Mapping[Place, Trajectory] | None = None,
        refusals: int = 0,
    ) -> Collected:
        """A group for each planned task. `finished` are the episodes of this step that a killed run has left;
        one among them that ended in infra_error is lost for good, as it was in the step that is repeated.
        `refusals`: how often the step has been sampled in vain; its seeds are others each time.

        With online_difficulty_filtering a group without signal is replaced by one of a spare task, until as many groups
        as are planned have signal or oversampling_factor times as many have been sampled. As many as the last steps
        needed begin at once with the others, since whoever waits for a group to end waits for its longest episode; if
        more than planned then have signal, all are kept.
        """
        await self.policy[0].start()
        settings = self._settings
        spares: list[Task] = []
        begun = len(plan)
        if settings.online_difficulty_filtering and self._schedule:
            count = max(0, int(settings.oversampling_factor * len(plan)) - len(plan))
            spares = self._schedule.spares(step, len(plan), count)
            begun += min(count, self._schedule.expected_losses(step, len(plan)))
        seeds = seeds_of([*plan, *spares], settings, step, refusals)
        work = _Collection(self, settings, step, version, [*plan, *spares], finished or {}, seeds)
        replacements = iter(range(begun, len(plan) + len(spares)))
        if self._ranks.size == 1:
            work.spare = replacements  # taken as soon as a group has ended
            work.missing = len(plan) - begun
        wanted: Sequence[int] = range(begun)
        while wanted:
            await work.run(self._ranks.my_share(wanted))
            await self._pool(work, f"the episodes of step {step + 1}", wanted)
            # Several ranks replace together, round by round: which tasks are used must not depend on their number.
            lost = max(0, len(plan) - len(work.groups))
            wanted = list(itertools.islice(replacements, lost)) if self._ranks.size > 1 else []
        return work.collected()

    async def group(
        self,
        step: int,
        plan: Sequence[Task],
        number: int,
        version: int,
        finished: Mapping[Place, Trajectory] | None = None,
        slot: EpisodeSlot | None = None,
    ) -> Collected:
        """One group of a step's plan by itself, by the policy that is served now. Groups are numbered over all steps:
        each keeps its name whichever step it is trained in. An episode waits for its `slot` before it begins."""
        await self.policy[0].start()
        first = step * len(plan)
        seeds = seeds_of(plan, self._settings, step, first=first)
        sampler, given = copy.copy(self), (self._settings, step, version, plan, finished or {}, seeds)
        with self.policy[0].pinned() as sampler._engine:
            work = _Collection(sampler, *given, first=first, slot=slot)
            await work.run([number])
        del work.counts["abandoned_tokens"]  # the engine counts those of all groups: who takes them asks it
        work.absorb([work.share([number])])
        return work.collected()

    async def evaluate(
        self,
        plan: Sequence[Task],
        agent: AgentFactory | None = None,
        *,
        rollouts: int = 1,
        temperature: float | None = None,
        seed: int = 0,
        version: int = 0,
        step: int = 0,
        finished: Mapping[Place, Trajectory] | None = None,
    ) -> Evaluated:
        """`rollouts` episodes of each task by the policy, or by the agents that `agent` makes. `step` only
        goes to `save`: the episodes' seeds are the same in every evaluation with the same `seed`."""
        if agent is None:
            await self.policy[0].start()
        temperature = self._settings.sampling.temperature if temperature is None else temperature
        sampling = replace(self._settings.sampling, temperature=temperature)
        settings = replace(self._settings, sampling=sampling, rollouts_per_example=rollouts, seed=seed)
        seeds = seeds_of(plan, settings, EVALUATION)
        work = _Collection(self, settings, step, version, plan, finished or {}, seeds, evaluating=True, agent=agent)
        await work.run(self._ranks.my_share(range(len(plan))))
        await self._pool(work, "the episodes of an evaluation", range(len(plan)))
        ended = [work.ended[place] for place in sorted(work.ended)]
        return Evaluated(
            tuple(t for t in ended if t.ending != "infra_error"),
            tuple(t for t in ended if t.ending == "infra_error"),
            work.stats(),
        )

    async def _pool(self, work: _Collection, what: str, groups: Sequence[int]) -> None:
        """Give every rank what all of them have sampled of these groups."""
        deadline_s = work.longest_s(-(-len(groups) // self._ranks.size))
        work.absorb(await self._ranks.all_gather(work.share(groups), what, deadline_s))


class _Collection:
    """The episodes of one collect() or evaluate().

    Group number i is always task i of `plan` (spare tasks included), whatever the order in which groups end:
    so a resumed run finds its finished episodes in the same places, with the same seeds. The plan's first is `first`.
    """

    def __init__(
        self,
        sampler: Sampler,
        settings: RolloutSettings,
        step: int,
        version: int,
        plan: Sequence[Task],
        finished: Mapping[Place, Trajectory],
        seeds: Mapping[Place, int],
        *,
        evaluating: bool = False,
        agent: AgentFactory | None = None,
        first: int = 0,
        slot: EpisodeSlot | None = None,
    ) -> None:
        self._sampler = sampler
        self._settings = settings
        self._step = step
        self._version = version
        self._plan = dict(enumerate(plan, first))
        self._finished = finished
        self._slot = slot or contextlib.nullcontext
        self._agent = agent
        self._evaluating = evaluating
        self._seeds = seeds
        self._episodes = TaskPool(settings.max_concurrent, None if agent else sampler._engine)
        self._clock = time.monotonic()
        self._episode_endpoint: EpisodeEndpoint | None = None
        self.spare = iter(range(0))
        self.missing = 0  # planned groups for which none has signal or is under way; below 0, so many more are
        self.ended: dict[Place, Trajectory] = {}
        self.groups: dict[int, Group] = {}
        self.dropped: dict[int, Dropped] = {}
        self.spoilt: dict[Place, list[Trajectory]] = {}
        self.counts: Counter[str] = Counter()  # of this rank
        self.totals: Counter[str] = Counter()  # of all ranks

    async def run(self, groups: Sequence[int]) -> None:
        for index in groups:
            self._start(index)
        before = abandoned(self._sampler._engine)
        programs = any(isinstance(self._sampler._envs[task.env], ProgramEnvironment) for task in self._plan.values())
        async with EpisodeEndpoint() if programs else contextlib.nullcontext() as self._episode_endpoint:
            with waiting(f"{len(groups)} groups of episodes", "the sampler", self.longest_s(len(groups))):
                await self._episodes.run()
        self.counts["abandoned_tokens"] += abandoned(self._sampler._engine) - before

    def longest_s(self, groups: int) -> float:
        """The time after which these groups have ended, whatever happened to their episodes."""
        settings = self._settings
        waits = settings.retry_wait_s * 2**settings.retries
        episode = (settings.retries + 1) * (settings.deadline_s + settings.finish_s) + waits
        scoring = (settings.retries + 1) * settings.finish_s + waits  # of groups, where it is of these
        rounds = -(-groups * settings.rollouts_per_example // settings.max_concurrent)
        return rounds * (episode + scoring) + MARGIN_S

    def share(self, groups: Sequence[int]) -> Share:
        wanted = set(groups)
        return Share(
            {place: t for place, t in self.ended.items() if place[0] in wanted},
            {i: group for i, group in self.groups.items() if i in wanted},
            {i: dropped for i, dropped in self.dropped.items() if i in wanted},
            {place: attempts for place, attempts in self.spoilt.items() if place[0] in wanted},
            self.counts,
        )

    def absorb(self, shares: Sequence[Share]) -> None:
        for share in shares:
            self.ended |= share.ended
            self.groups |= share.groups
            self.dropped |= share.dropped
            self.spoilt |= share.spoilt
        self.totals = sum((share.counts for share in shares), Counter())

    def _start(self, index: int) -> None:
        """Members of a group start next to each other, so that the engine computes their prompt once."""
        left = self._left(index)
        for sample in range(self._settings.rollouts_per_example):
            place = (index, sample)
            if old := left.get(place):
                self.counts["reused"] += 1
                if old.ending == "infra_error":
                    self.spoilt.setdefault(place, []).append(old)
                self._end(place, replace(old, task=self._plan[index]))
            else:
                self._episodes.add(lambda place=place: self._in_slot(place))  # type: ignore[misc]

    def _left(self, index: int) -> dict[Place, Trajectory]:
        """What can be used again of a group; of one whose members were scored together, all or nothing."""
        rollouts = self._settings.rollouts_per_example
        places = [(index, sample) for sample in range(rollouts)]
        found = {p: self._finished[p] for p in places if p in self._finished and self._reusable(self._finished[p], p)}
        together = bool(found) and scores_groups(self._env(index))
        return {} if together and not is_complete(found, rollouts) else found

    def _env(self, index: int) -> Environment:
        return self._sampler._envs[self._plan[index].env]

    def _reusable(self, old: Trajectory, place: Place) -> bool:
        same = (old.version, old.seed, old.task.id)
        return same == (self._version, self._seeds[place], self._plan[place[0]].id)

    async def _in_slot(self, place: Place) -> None:
        async with self._slot():
            await self._episode(place)

    async def _episode(self, place: Place) -> None:
        """Attempts with the same seed, each saved, until one is not spoilt by the machinery."""
        settings = self._settings
        for attempt in range(settings.retries + 1):
            trajectory = await self._attempt(place)
            if waits_for_group(self._env(place[0]), trajectory):
                break  # it is saved with its score
            self._sampler._save(trajectory, self._step)
            if trajectory.ending != "infra_error":
                break
            self.counts["infra_errors"] += 1
            self.spoilt.setdefault(place, []).append(trajectory)
            if attempt < settings.retries:
                self.counts["retried"] += 1
                await asyncio.sleep(settings.retry_wait_s * 2**attempt)
        self.ended[place] = trajectory
        await self._score_together(place[0])
        self._end(place, self.ended[place])

    async def _score_together(self, index: int) -> None:
        """A group that has ended, where its environment scores groups."""
        env, places = self._env(index), [(index, s) for s in range(self._settings.rollouts_per_example)]
        if not isinstance(env, ProgramEnvironment) or not env.scores_groups or not all(p in self.ended for p in places):
            return
        attempts = [t.id for place in places for t in (self.ended[place], *self.spoilt.get(place, ()))]
        try:
            members, save = {place: self.ended[place] for place in places}, self._sampler._save
            scored = await end_group(env, members, self._settings, self.counts, lambda t: save(t, self._step))
        finally:
            env.forget(attempts)
        self.ended |= scored
        for place, trajectory in scored.items():
            if trajectory.ending == "infra_error":
                self.spoilt.setdefault(place, []).append(trajectory)

    async def _attempt(self, place: Place) -> Trajectory:
        task, env = self._plan[place[0]], self._env(place[0])
        settings = self._settings
        common: dict[str, Any] = {
            "id": self._sampler._names.make(task.id, self._version, *place),
            "seed": self._seeds[place],
            "version": self._version,
            "deadline_s": settings.deadline_s,
            "downtime": self._sampler._engine.downtime if self._sampler._engine and not self._agent else None,
        }
        try:
            if isinstance(env, ProgramEnvironment):
                assert self._episode_endpoint is not None
                return await run_program(env, task, self._serve(env, task, place), self._episode_endpoint, **common)
            agent = self._make_agent(env, task, place)
            more: dict[str, Any] = {"finish_s": settings.finish_s, "parser": settings.parser}
            return await run_episode(env, task, agent, **common, **more)
        except EpisodeDefect as defect:
            self._sampler._save(defect.trajectory, self._step)
            raise

    def _serve(self, env: ProgramEnvironment, task: Task, place: Place) -> ServedEpisode:
        """What answers a program: the policy, or the agent that stands in for it."""
        if self._agent is not None:
            return ServedAgent(self._agent(env, task, self._seeds[place]), env.max_turns)
        order = f"{place[0]:06d}-{place[1]:04d}"
        return serve_policy(env, *self._sampler.policy, self._settings, self._seeds[place], order)

    def _make_agent(self, env: Environment, task: Task, place: Place) -> Agent:
        seed = self._seeds[place]
        if self._agent is not None:
            return self._agent(env, task, seed)
        settings, order = self._settings, f"{place[0]:06d}-{place[1]:04d}"
        more: dict[str, Any] = {"seed": seed, "order": order, "strategy": settings.strategy}
        return PolicyAgent(ChatSession(*self._sampler.policy, settings.sampling, **more))

    def _end(self, place: Place, trajectory: Trajectory) -> None:
        self.ended[place] = trajectory
        index, rollouts = place[0], self._settings.rollouts_per_example
        members = [self.ended[index, s] for s in range(rollouts) if (index, s) in self.ended]
        if len(members) == rollouts:
            self._group_ended(index, members)

    def _group_ended(self, index: int, members: Sequence[Trajectory]) -> None:
        """Before this, episodes are what they are by themselves; after it, what they are in their group."""
        scored = tuple(t for t in members if t.ending != "infra_error")
        too_few = len(scored) < min(2, len(members))
        if not too_few and not self._evaluating:
            scored = compared(self._env(index), scored)
        group = Group(self._plan[index], self._version, scored)
        filtering = self._settings.online_difficulty_filtering
        if too_few:
            self.dropped[index] = Dropped(group, "infra_error")
        elif filtering and not group.has_signal:
            self.dropped[index] = Dropped(group, "no_signal")
        else:
            self.groups[index] = group
            return
        self.missing += 1
        if self.missing > 0 and (replacement := next(self.spare, None)) is not None:
            self.missing -= 1
            self._start(replacement)

    def collected(self) -> Collected:
        groups = tuple(self.groups[i] for i in sorted(self.groups))
        spoilt = tuple(t for place in sorted(self.spoilt) for t in self.spoilt[place])
        return Collected(groups, tuple(self.dropped[i] for i in sorted(self.dropped)), self.stats(), spoilt)

    def stats(self) -> dict[str, float]:
        found = counted(self.ended.values(), self.dropped.values(), self.totals)
        return {**found, "groups": len(self.groups), "seconds": time.monotonic() - self._clock}
