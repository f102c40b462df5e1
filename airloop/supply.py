"""Where the learner of stream.py gets its groups from: sampled beside it, taken in order, written down."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence, Set
from dataclasses import replace

from airloop.assemble import Components, training_schedule
from airloop.clocks import Clock, SimulatedClock, WallClock
from airloop.ranks import MEET_S, Ranks
from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected, Place, abandoned
from airloop.rollout.group_scoring import incomplete_groups
from airloop.rollout.producer import Producer
from airloop.runs.admissions import Admissions, UpdateGroups
from airloop.runs.run import Run
from airloop.seeds import stable_hash
from airloop.types import Group, Trajectory
from airloop.waits import waiting

# On the simulated clock an update takes as long as an episode does on average, and episodes are long-tailed, so that
# groups end out of order.
UPDATE, SPREAD = 1.0, 1.0


class Supply:
    """The groups of a run. `clock` is simulated with deterministic = true: a group is then sampled at its admission, by
    the policy of that moment, and is there when the durations that are drawn for its episodes have passed."""

    def __init__(self, parts: Components, run: Run) -> None:
        config = parts.config
        o = config.orchestrator
        self._run, self._seed, self._rollouts = run, config.seed, o.rollouts_per_example
        self._envs, self._engine = parts.envs, parts.engine
        self._abandoned = abandoned(parts.engine)  # tokens, when it was last asked
        self._groups = o.batch_size // o.rollouts_per_example
        self._longest_s = (o.retries + 2) * o.episode_timeout_s
        self._schedule = training_schedule(config, parts.envs)
        self._sampler = parts.sampler(run.save_trajectory, self._schedule)
        self._admissions = Admissions(run.path)
        self._replay = self._admissions.resume(run.first_step)
        self._left = _finished(run, self._replay.lost)
        self.clock: Clock = SimulatedClock() if config.deterministic else WallClock()
        factor = o.oversampling_factor if o.buffer.online_difficulty_filtering else 1.0
        queue = AdmissionQueue(self._groups, int(factor * self._groups), o.max_staleness)
        self._held = 0.0  # seconds that the producer reported last
        self._producer = Producer(
            queue,
            self._sample,
            self.clock,
            slots=o.max_concurrent,
            rollouts=o.rollouts_per_example,
            steps=lambda: run.config.max_steps,
            note=self._note_admitted,
        )

    def _note_admitted(self, admitted: Admitted) -> None:
        self._run.fence()
        self._admissions.admitted(admitted.number, admitted.version)

    async def start(self) -> None:
        """Where the run was when its checkpoint was made. On the simulated clock all that has happened is passed over
        again, without the work, so that the hands stand as they did."""
        queue, replay = self._producer.queue, self._replay
        if not isinstance(self.clock, SimulatedClock):
            queue.version, queue.next = self._run.first_step, max(replay.versions, default=-1) + 1
            for number, version in replay.open:
                queue.admit_again(number, version)
            self._producer.start()
            return
        self._producer.start()
        for taken in replay.before(self._run.first_step):
            await self._producer.take()
            await self.clock.spend(UPDATE)
            self._over(taken.refused)

    async def take(self, step: int) -> tuple[UpdateGroups, Collected]:
        """The groups of the next update. One that was refused before the run was resumed is so again."""
        while True:
            began = time.perf_counter()
            with waiting(f"the groups of step {step + 1}", "the sampler", self._longest_s):
                groups = await self._producer.take()
            await self.clock.spend(UPDATE)
            taken = UpdateGroups(
                step, tuple(g.number for g in groups), frozenset(g.number for g in groups if g.dropped), False
            )
            if taken.numbers not in self._replay.refused:
                break
            self._over(refused=True)
        self._move_to_step(step, groups)
        ended = [group.ended for group in groups if group.ended is not None]
        before, self._abandoned = self._abandoned, abandoned(self._engine)
        stats = {"seconds": time.perf_counter() - began, "abandoned_tokens": self._abandoned - before}
        return taken, Collected.joined(ended, **stats)

    def trained(self) -> None:
        """The update is made and served: from now on groups are sampled by the new policy."""
        self._over(refused=False)

    def held(self) -> dict[str, float]:
        """Of a step's times: what samplers waited for the learner since this was asked before. On the simulated clock
        nobody waits."""
        if isinstance(self.clock, SimulatedClock):
            return {}
        before, self._held = self._held, self._producer.held_s()
        return {"held": self._held - before}

    def steps_changed(self) -> None:
        """The run has another number of steps, perhaps: whoever waited for its end looks again."""
        self.clock.tell()

    def accepted(self, taken: UpdateGroups) -> None:
        self._note(taken)

    def refused(self, taken: UpdateGroups) -> None:
        """What it sampled and made has been set aside."""
        self._note(taken, refused=True)
        self._over(refused=True)

    async def close(self) -> None:
        await self._producer.close()

    def _note(self, taken: UpdateGroups, refused: bool = False) -> None:
        kept = [number for number in taken.numbers if number not in taken.dropped]
        self._admissions.taken(taken.step, kept, sorted(taken.dropped), refused=refused)

    def _over(self, refused: bool) -> None:
        if refused:
            self._producer.refused()
        else:
            self._producer.trained()

    async def _sample(self, producer: Producer, admitted: Admitted) -> Collected:
        collected = await self._sampled(producer, admitted)
        if not collected.groups:  # its place is another's from now on, also after a restart
            self._admissions.lost(admitted.number)
        return collected

    async def _sampled(self, producer: Producer, admitted: Admitted) -> Collected:
        number, version = admitted.number, admitted.version
        planned = number // self._groups  # the step that it is planned for: where groups are dropped, it comes sooner
        plan = self._schedule.batch(planned, self._groups)
        left = self._left.pop(number, {})
        sample = functools.partial(self._sampler.group, planned, plan, number, version)
        if not isinstance(self.clock, SimulatedClock):
            left = self._whole(planned, left) if incomplete_groups(left, self._envs, self._rollouts) else left
            return await sample(left, functools.partial(producer.episode_slot, number))
        if (taken := self._replay.spent.get(number)) is not None:  # its episodes are not needed any more
            group = Group(plan[number % self._groups], version, ())
            collected = Collected(() if number in taken.dropped else (group,), (), {})
        else:
            collected = await sample(self._whole(planned, left))
        await producer.play(number, self._durations(number))
        return collected

    def _whole(self, planned: int, left: dict[Place, Trajectory]) -> dict[Place, Trajectory]:
        """All of a group or nothing: in lock-step the batch around an episode must be the same as in a run that was
        never killed, and a group that is scored together has no members by themselves."""
        if left and (len(left) < self._rollouts or incomplete_groups(left, self._envs, self._rollouts)):
            self._run.move_episodes([t.id for t in left.values()], planned, f"aside_{planned:04d}_groups")
            return {}
        return left

    def _durations(self, number: int) -> list[float]:
        """Of mean 1."""
        seeds = [stable_hash("duration", self._seed, number, sample) for sample in range(self._rollouts)]
        return [random.Random(seed).lognormvariate(-(SPREAD**2) / 2, SPREAD) for seed in seeds]

    def _move_to_step(self, step: int, groups: Sequence[Admitted]) -> None:
        """A step's episodes are in its folder, also those of groups that were planned for a later one."""
        for admitted in groups:
            planned, ended = admitted.number // self._groups, admitted.ended
            if planned != step and ended is not None:
                found = [*ended.groups, *(dropped.group for dropped in ended.dropped)]
                episodes = [t for group in found for t in group.trajectories] + list(ended.spoilt)
                self._run.move_episodes([t.id for t in episodes], planned, f"step_{step:04d}")


class SharedSupply:
    """Of several ranks beside servers: the first has all groups sampled, as if it were alone, and every rank is told
    which an update takes. So what is admitted, kept and resumed does not depend on their number."""

    def __init__(self, parts: Components, run: Run) -> None:
        o = parts.config.orchestrator
        self._ranks = parts.ranks
        self._first = Supply(replace(parts, ranks=Ranks()), run) if parts.ranks.first else None
        self._longest_s = max(MEET_S, (o.retries + 2) * o.episode_timeout_s)
        self.clock: Clock = WallClock()

    async def start(self) -> None:
        if self._first:
            await self._first.start()

    async def take(self, step: int) -> tuple[UpdateGroups, Collected]:
        own = await self._first.take(step) if self._first else None
        found = (await self._ranks.all_gather(own, f"the groups of step {step + 1}", self._longest_s))[0]
        assert found is not None
        return found

    def trained(self) -> None:
        if self._first:
            self._first.trained()

    def held(self) -> dict[str, float]:
        return self._first.held() if self._first else {}

    def steps_changed(self) -> None:
        if self._first:
            self._first.steps_changed()

    def accepted(self, taken: UpdateGroups) -> None:
        if self._first:
            self._first.accepted(taken)

    def refused(self, taken: UpdateGroups) -> None:
        if self._first:
            self._first.refused(taken)

    async def close(self) -> None:
        if self._first:
            await self._first.close()


def make_supply(parts: Components, run: Run) -> Supply | SharedSupply:
    return Supply(parts, run) if parts.ranks.size == 1 else SharedSupply(parts, run)


def _finished(run: Run, lost: Set[int]) -> dict[int, dict[Place, Trajectory]]:
    """Episodes that a killed run has left, by the number of their group. What the machinery spoilt is tried again, but
    not where the group was given up for it: others have its place."""
    found: dict[int, dict[Place, Trajectory]] = {}
    for path in sorted((run.path / "trajectories").glob("step_*")):
        step = int(path.name.removeprefix("step_"))
        if step < run.first_step:
            continue
        spoilt = run.finished(step, spoilt=True) if lost else {}
        spoilt = {place: t for place, t in spoilt.items() if place[0] in lost}
        for place, trajectory in (spoilt | run.finished(step)).items():
            found.setdefault(place[0], {})[place] = trajectory
    return found
