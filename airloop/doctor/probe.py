"""The probe: a few groups of real episodes, sampled once through the real sampler, and looked at by many checks.

It waits for evidence, not for a clock: how long an episode may take follows from how fast replies come here. What
cannot be had within LONGEST_S is not judged, with the reason; it is never the failure of something else.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airloop.doctor.refusals import SLOWER, NotJudged
from airloop.doctor.reply_times import time_replies
from airloop.errors import AirError
from airloop.runs.trajectory_file import to_json
from airloop.text.figures import duration
from airloop.types import Group, Trajectory, Turn
from airloop.waits import waiting

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.config import Config
    from airloop.learn.batches import Row
    from airloop.rollout.collected import RolloutSettings

Wait = Callable[[Coroutine[Any, Any, "Probe"]], "Probe"]  # its result, from the event loop that the engine lives in
# Two groups of the usual size: enough replies to tell "never" from "seldom" (see the checks), and on two cores with
# the default model about 20 s.
EPISODES = 16
LARGEST_GROUP = 8
# Where only replies are wanted, for proofs: what happens to one token happens to all.
FEW_EPISODES = 4
# … and where the probe would take too long, each of so many tokens at most.
FEW_TOKENS = 16
# What a round of episodes may take on any machine; what has not ended then is scored as it stands. On a GPU it is an
# hour of that GPU which is at stake, and its tasks are the slow ones. A slow machine gets as long as it needs for …
ROUND_S = {"cpu": 40.0, "cuda": 120.0}
# … so many replies of full length in every episode, with a margin for the tools and for others who begin to work.
REPLIES, MARGIN = 2, 2.0
# The longest that the whole probe may take. First replies that would take longer than this are not asked for.
LONGEST_S = 900.0
# Rewards that hardly differ are looked at again, up to this many rounds in all: of 48 episodes, all are alike only if
# fewer than one in 16 would be different (at 95 %). Where a round takes longer than half of ROUND_S, one must do, and
# what was seen is a warning, not a failure.
ROUNDS = 3
# A group's commonest reward, as a share of the group, averaged over groups. At 0.9 a binary reward is about 5 % or
# 95 %, and two of three groups of eight have no signal.
STUCK = 0.9
# From here on it may be: where one episode in 23 is different, two of the first 16 are in one case of eight.
NEARLY_STUCK = 0.8
# What is judged by what the policy does and earns in whole episodes.
EARNED = ("E1", "E2", "E4", "E9", "D19", "B4", "B9", "B10")
# Tokens of the probe's episodes that are computed again by the trainer: seconds on two cores.
TRAINER_TOKENS = 2048


@dataclass
class Probe:
    """`groups` have a score; of `lost` episodes the machinery failed. `seconds` of `started` episodes, by the clock."""

    parts: Components
    groups: tuple[Group, ...]
    lost: tuple[Trajectory, ...]
    seconds: float
    started: int
    limit_s: float  # an episode's deadline in the probe
    own_s: float = 0.0  # of the processor, for an episode, in the thread that plays them: they take turns at it
    hurried: bool = False  # rewards hardly differ, and there was no time to see whether that was chance

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
            raise self.no_reply
        return found

    @cached_property
    def no_reply(self) -> NotJudged:
        return NotJudged(
            f"not one reply was sampled in the {duration(self.seconds)} of the probe: {self._endings()}",
            f"see what hangs, the environment or the engine (`air doctor --only D6,G9 --verbose`); {SLOWER}",
        )

    @cached_property
    def unfinished(self) -> NotJudged:
        return NotJudged(
            f"the probe's {duration(self.limit_s)} for an episode ended {self.cut} of {len(self.trajectories)} before "
            f"they were over (the config gives them {duration(self.parts.config.orchestrator.episode_timeout_s)})",
            "nothing need be changed: what episodes earn shows in the first steps, and alarms look at it",
            EARNED,
        )

    @cached_property
    def untrained(self) -> NotJudged:
        return NotJudged(
            "a supervised start comes first, and this policy has not had it",
            "nothing need be changed: `air train` looks again after it",
            EARNED,
        )

    def _endings(self) -> str:
        named = Counter(t.ending for t in [*self.trajectories, *self.lost]).most_common()
        return ", ".join(f"{count} episodes ended by {ending}" for ending, count in named)

    @cached_property
    def trainer(self) -> dict[str, list[float]]:
        """The trainer's log-probs of the rows' trained tokens, by row."""
        return self.parts.learner.logprobs(self.rows)


def run_probe(parts: Components, wait: Wait, episodes: int = EPISODES, most_tokens: int | None = None) -> Probe:
    """Samples as the first step will, and leaves nothing behind: no file, no cached prefix, no random state. Replies
    have at most `most_tokens`, where that is given."""
    from airloop.learn.checkpoints import random_states, set_random_states

    states = random_states()
    try:
        probe = wait(_Sampling(parts, episodes, most_tokens).run())
    finally:
        set_random_states(states)
    if probe.groups:
        return probe
    first = next((t.error for t in probe.lost if t.error), "no episode was started")
    slow = [t for t in probe.lost if t.seconds >= probe.limit_s]
    if slow and len(slow) == len(probe.lost) and probe.limit_s < parts.config.orchestrator.episode_timeout_s:
        raise NotJudged(
            f"no episode could be scored within the probe's {duration(probe.seconds)}. The first one: {first}",
            f"see what hangs, the environment or the engine (`air tasks check`); {SLOWER}",
        )
    raise AirError(
        f"None of the probe's {probe.started} episodes could be scored. The first one: {first}",
        "mend what it names; nothing can be learned from episodes that the machinery spoils.",
    )


class _Sampling:
    """The probe under way."""

    def __init__(self, parts: Components, episodes: int, most_tokens: int | None = None) -> None:
        from airloop.assemble import training_schedule
        from airloop.rollout.schedule import Names

        self.parts = parts
        self.names = Names()  # of all rounds: a task may come again within the same second
        self.rounds, self.replies = (ROUNDS, REPLIES) if episodes >= EPISODES else (1, 1)
        self.schedule = training_schedule(parts.config, parts.envs)
        self._round_s = ROUND_S.get(parts.policy.device.type, ROUND_S["cpu"])
        self.members = min(parts.config.orchestrator.rollouts_per_example, LARGEST_GROUP, episodes)
        self.width = min(episodes // self.members, len(self.schedule))
        self.settings = _settings(parts, self.members, most_tokens)
        self.ended: list[Trajectory] = []
        self.groups: list[Group] = []
        self.started = 0
        self.busy_s = 0.0
        self.began = time.monotonic()

    async def run(self) -> Probe:
        await self._set_deadline()
        rounds = 1
        await self._collect(0)
        if not self.groups and self.settings.deadline_s < (longest := self._longest_s()):
            # A sandbox may take longer to open than the probe has: one group gets the time that a run would give it.
            self.settings, self.width = replace(self.settings, deadline_s=longest), 1
            await self._collect(0)
        while rounds < self.rounds and self._stuck(NEARLY_STUCK) and self._in_time():
            await self._collect(rounds)
            rounds += 1
        hurried = rounds < self.rounds and self._stuck()
        seconds = time.monotonic() - self.began
        await self.parts.engine.publish(self.parts.engine.version)  # the run starts as if nothing had been cached
        lost = tuple(t for t in self.ended if t.ending == "infra_error")
        limit_s = self.settings.deadline_s
        own_s = self.busy_s / max(self.started, 1)
        return Probe(self.parts, tuple(self.groups), lost, seconds, self.started, limit_s, own_s, hurried)

    async def _set_deadline(self) -> None:
        """By the speed of first replies: enough for some of them, never more than a run would give."""
        config = self.parts.config
        at_once = min(self.width * self.members, self.settings.max_concurrent * self.parts.ranks.size)
        waves = -(-self.width * self.members // at_once)
        speed = await time_replies(self.parts, self.schedule.batch(0, self.width), at_once, self._longest_s())
        reply_s = speed.reply_s(self.settings.sampling.max_tokens) if speed else 0.0
        if reply_s * waves > LONGEST_S and self.width > 1:  # one group has a fraction of the prompts
            self.width, waves = 1, -(-self.members // at_once)
        most = min(config.orchestrator.episode_timeout_s, LONGEST_S / waves)
        if reply_s > most:
            raise NotJudged(
                f"the probe's first replies would take about {duration(reply_s)} here, and have {duration(most)}",
                f"{SLOWER}, and gives an episode {duration(config.orchestrator.episode_timeout_s)} "
                "(orchestrator.episode_timeout_s)",
            )
        wanted = max(self._round_s / waves, self.replies * MARGIN * reply_s)
        self.settings = replace(self.settings, deadline_s=min(most, wanted))

    async def _collect(self, number: int) -> None:
        from airloop.rollout.sampler import Sampler

        parts, count = self.parts, self.width * self.members
        with waiting("the probe's episodes", "the sampler", LONGEST_S) as wait:
            wait.progress(f"0 of {count}")
            done = len(self.ended)

            def save(trajectory: Trajectory, _: int) -> None:
                json.dumps(to_json(trajectory))  # as much work as a run has with it
                self.ended.append(trajectory)
                wait.progress(f"{len(self.ended) - done} of {count}")

            given = (parts.engine, parts.loaded.tokenizer, parts.envs, self.settings, save)
            sampler = Sampler(*given, ranks=parts.ranks, names=self.names)
            plan = self.schedule.batch(number, self.width)
            busy = time.thread_time()
            self.groups += (await sampler.collect(number, plan, parts.policy.version)).groups
            self.busy_s += time.thread_time() - busy
        self.started += count

    def _longest_s(self) -> float:
        """What is left of the probe's time, and no more than a run would give an episode."""
        left = LONGEST_S - (time.monotonic() - self.began)
        return min(self.parts.config.orchestrator.episode_timeout_s, max(left, 0.0))

    def _stuck(self, share: float = STUCK) -> bool:
        judged = bool(self.groups) and not before_warmstart(self.parts.config)
        return judged and stuck_share(self.groups) >= share

    def _in_time(self) -> bool:
        return time.monotonic() - self.began < self._round_s / 2


def _settings(parts: Components, members: int, most_tokens: int | None) -> RolloutSettings:
    from airloop.assemble import rollout_settings

    settings = rollout_settings(parts.config, parts.loaded.tokenizer.stop_ids, parts.ranks.size)
    sampling = settings.sampling
    return replace(
        settings,
        sampling=replace(sampling, max_tokens=min(sampling.max_tokens, most_tokens or sampling.max_tokens)),
        rollouts_per_example=members,
        retries=min(settings.retries, 1),  # to see that it fails is enough
        online_difficulty_filtering=False,  # groups without signal are what is looked for
    )


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
