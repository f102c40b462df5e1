"""What sampling and training have in common whether they take turns (loop.py) or go side by side (stream.py).

`Training` holds what every step needs of a run. In both loops a step is prepared, its update made and recorded, looked
at by the alarms, and then accepted or refused: accepted first, before anything is made of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from airloop import interrupts
from airloop.assemble import Components
from airloop.budget import Budget, keep_to_budget
from airloop.config import Config
from airloop.errors import AirError
from airloop.evaluation import evaluate_policy, wants_base
from airloop.events import Watcher
from airloop.learn.advantages import Batch, TurnWeights, assign_advantages
from airloop.learn.checkpoints import prune, random_states, save_checkpoint
from airloop.learn.memory import memory_told
from airloop.learn.optimiser import NotFinite
from airloop.learn.overlong import Overlong, shape_overlong
from airloop.learn.parallel import Shards
from airloop.learn.report import Report
from airloop.learn.schedules import scheduled_lr
from airloop.rollout.collected import Collected
from airloop.runs.run import Run
from airloop.runs.step_record import StepRecord
from airloop.success import NAME, success_in
from airloop.types import Alarm, Trajectory
from airloop.waits import waiting
from airloop.watch.alarms.gap import judge_gap
from airloop.watch.alarms.monitor import Alarms, Found, Halted, set_aside
from airloop.watch.alarms.script_similarity import ScriptSimilarity
from airloop.watch.display.summary import base_gain, worse_start
from airloop.watch.metrics.ages import age_facts, fresh_gap
from airloop.watch.metrics.facts import step_facts, step_ledger
from airloop.watch.metrics.latency import StepClock
from airloop.watch.metrics.step_metrics import step_record

# For one part of an update, a forward and backward pass: minutes at most, on the slowest CPU that we have measured.
UPDATE_S = 1800.0
# In a row, of one step, each time with other episodes: after that it is not the episodes.
MOST_REFUSALS = 3


@dataclass(frozen=True)
class Outcome:
    """Episodes on the held-out tasks before the first step and after the last: the same tasks and seeds."""

    before: list[Trajectory]
    after: list[Trajectory]


@dataclass
class Unsaved:
    """The last step that is finished and has no checkpoint, while the learner still has its weights."""

    step: int | None = None
    drawn: dict[str, Any] = field(default_factory=dict)  # random states at its end


def _nothing(*_: object) -> None:
    """For a loop that has nothing of its own to do at this point."""


@dataclass(frozen=True)
class Training:
    """A run that is being trained, with what looks on: alarms, and the comparison with scripts."""

    parts: Components
    run: Run
    watcher: Watcher
    budget: Budget | None
    alarms: Alarms
    similarity: ScriptSimilarity
    unsaved: Unsaved = field(default_factory=Unsaved)

    def phase(self, step: int, text: str, total: int = 0) -> None:
        self.watcher.phase(f"step {step + 1}/{self.run.config.max_steps}: {text}", total)

    async def prepare(self, step: int, collected: Collected) -> tuple[Collected, Batch]:
        """What is trained on: rewards as they are shaped, and advantages."""
        collected = shaped(self.parts, collected)
        batch = advantages(self.parts, collected)
        self.phase(step, "training")
        await asyncio.sleep(0)  # Ctrl-C is heard here: an update, once begun, is finished
        return collected, batch

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around an update: it has a deadline, and memory that was not enough is told with what to change."""
        config = self.run.path / "config.toml"
        how = f"write it into {config}, then `air train --resume {self.run.path}`"
        self.unsaved.step = None
        with (
            interrupts.finishing("the update"),
            waiting("the update", "the learner", UPDATE_S, here=True),
            memory_told(self.parts.policy.device, self.parts.config.trainer.token_budget, how),
        ):
            yield

    async def record(
        self,
        step: int,
        collected: Collected,
        batch: Batch,
        report: Report,
        clock: StepClock,
        left: Container[str] = (),
        held: Callable[[], dict[str, float]] | None = None,
    ) -> StepRecord:
        """After the update is published. `left`: the ids of episodes that a killed run had left in this step. `held`:
        sampling went on beside training, so that tokens differ in age, and a step's time cannot be split by its
        episodes; instead, how long samplers waited for the learner."""
        self.run.fence()
        ledger = step_ledger(self.parts, collected, batch, report)
        times = clock.times(collected.groups, left)
        facts = step_facts(self.parts, collected, report) | self.similarity.facts(collected)
        if held is None:
            facts |= await judge_gap(self.parts, batch.rows, report)
        else:
            facts |= age_facts(self.parts, collected, report, step)
            facts |= await judge_gap(self.parts, batch.rows or batch.silent, report, fresh_gap(facts["ages"]))
            times = clock.times(()) | held()
        return step_record(step, collected, batch, report, times, ledger, facts)

    async def refuse(
        self,
        step: int,
        why: str,
        made: StepRecord | None = None,
        also: Callable[[], None] = _nothing,
        later: bool = True,
    ) -> int:
        """Sets the step aside, and what the loop has of it besides (`also`); how often that has been done by now, on
        every rank. `later`: so are episodes of later steps."""
        self.run.refuse(step, why, made, later)
        also()
        await self.parts.ranks.barrier("a step that was refused is set aside, before it is sampled anew")
        return self.run.refusals(step)

    async def sample_anew(
        self, step: int, error: NotFinite, also: Callable[[], None] = _nothing, later: bool = True
    ) -> None:
        """After an update that could not be made. It ends the run where that would not help, or not be the same run."""
        refusals = await self.refuse(step, error.problem, also=also, later=later)
        check_refusal(self.run, step, refusals, error)
        if self.parts.ranks.first:
            self.alarms.refused(step, error.problem, refusals)
        if self.budget:
            self.budget.begin_steps()

    async def halt(
        self, step: int, worst: Alarm, found: Found, made: StepRecord, also: Callable[[], None] = _nothing
    ) -> NoReturn:
        """This update may be at fault: no checkpoint, and the step comes anew when the run is resumed."""
        refusals = await self.refuse(step, worst.seen, made, also)
        self.alarms.tell(found)
        raise Halted(worst, self.run.path, refusals)

    def accept(
        self, step: int, made: StepRecord, found: Found, heard: Callable[[dict[str, Any]], None] = _nothing
    ) -> None:
        """Written down first: whoever hears of the step hears of one that counts. `heard`: the schedule of the loop."""
        self.run.accept(step, made)
        heard(made.metrics)
        self.watcher.step(made.metrics)
        self.similarity.suspect(made.metrics)
        self.alarms.tell(found)

    async def finish(self, step: int, found: Found, replayed: bool, changed: Callable[[], None] = _nothing) -> None:
        """What is due after an accepted step: evaluation, budget, checkpoint. Ends the run where an alarm does.
        `changed`: the run may have another number of steps."""
        parts, run, finished = self.parts, self.run, step + 1
        evaluation = parts.config.orchestrator.eval
        if evaluation.interval and finished % evaluation.interval == 0:
            await evaluate(parts, run, self.watcher, finished, f"step_{finished:04d}", evaluation.split)
        await keep_to_budget(self.budget, parts, run, self.watcher, finished, replayed)
        changed()
        marked = finished in (run.config.max_steps, best_step(run))
        if found.worst or marked or finished % parts.config.ckpt.interval == 0:
            checkpoint(parts, run, finished)
        else:
            self.unsaved.step, self.unsaved.drawn = finished, random_states()
        if found.worst and finished < run.config.max_steps:
            raise Halted(found.worst, run.path)

    def save_last(self) -> None:
        """Where the run ends early: what would have to be computed again. Of shards it takes all ranks, which may not
        be there any more."""
        if (step := self.unsaved.step) is None or not self.parts.ranks.first:
            return
        if isinstance(self.parts.learner.shards, Shards):
            return self.watcher.say(
                f"note: weights in shards are not saved now: updates up to step {step} are made again when resumed"
            )
        try:
            checkpoint(self.parts, self.run, step, self.unsaved.drawn)
        except Exception as error:  # a full disk, say: the run ends for its own reason
            self.watcher.say(f"warning: no checkpoint of step {step} could be written: {error}")

    async def outcome(self, before: list[Trajectory]) -> Outcome:
        """After the last step: the evaluation that the one before the first is compared with."""
        split = self.parts.config.orchestrator.eval.test_split
        after = await evaluate(self.parts, self.run, self.watcher, self.run.config.max_steps, "after", split)
        return Outcome(before, after)


@asynccontextmanager
async def monitored(
    parts: Components, run: Run, watcher: Watcher, budget: Budget | None = None
) -> AsyncIterator[Training]:
    """While a run trains."""
    training = Training(parts, run, watcher, budget, Alarms(run, watcher), ScriptSimilarity(parts.envs, run))
    with training.alarms.monitoring():
        try:
            yield training
        except (asyncio.CancelledError, AirError):
            training.save_last()
            raise
        finally:
            await training.similarity.close()


def lr_of(config: Config, step: int, steps: int) -> float:
    """A budget may change `steps` on the way: the rate then is what the new length says."""
    o = config.trainer.optim
    return scheduled_lr(
        o.schedule, o.lr, step, steps, warmup_steps=o.warmup_steps, decay_steps=o.decay_steps, min_lr=o.min_lr
    )


def check_refusal(run: Run, step: int, refusals: int, error: NotFinite) -> None:
    """After an update that could not be made: ends the run where other episodes would not help, or where it would not
    be the same run."""
    change = f"{error.fix} Change it in {run.path / 'config.toml'}, then go on with `air train --resume {run.path}`."
    if refusals >= MOST_REFUSALS:
        raise AirError(
            f"The update of step {step + 1} could not be made for {refusals} times in a row, each time with other "
            f"episodes. The last time: {error.problem}",
            f"{change} Going on without a change tries once more.",
        ) from error
    if error.moved:  # by an earlier pass over this batch: only the checkpoint has the weights as they were
        raise AirError(
            f"{error.problem} That was a later pass over the batch of step {step + 1}: those before have moved the "
            "weights, so the run ends here, and nothing of this step is kept.",
            f"{change} It goes on as it is, too, from the last checkpoint: {set_aside(run.path, step, refusals)}",
        ) from error


def shaped(parts: Components, collected: Collected) -> Collected:
    """With trainer.loss.overlong, length near its limit has a price in the rewards that are trained on."""
    config, loss = parts.config, parts.config.trainer.loss
    if loss.overlong == "off":
        return collected
    assert loss.overlong_share is not None and loss.overlong_penalty is not None
    limit = config.orchestrator.sampling.max_tokens if loss.overlong == "reply" else config.seq_len
    overlong = Overlong(loss.overlong, limit, loss.overlong_share, loss.overlong_penalty)
    return replace(collected, groups=shape_overlong(collected.groups, overlong))


def advantages(parts: Components, collected: Collected) -> Batch:
    loss = parts.config.trainer.loss
    by_turn = {n: TurnWeights(env.reward_weights, env.turn_reward_mode) for n, env in parts.envs.items()}
    return assign_advantages(
        collected.groups,
        loss=loss.type,
        scale_rewards=loss.scale_rewards,
        token_constant=parts.config.seq_len,
        keep_zero=loss.kl_beta > 0 or loss.entropy_beta > 0,
        scale_by=loss.scale_by or "group",
        turn_weights=by_turn if loss.credit == "turn" else None,
        filtered=[dropped.group for dropped in collected.dropped if dropped.reason == "no_signal"],
        advantage=loss.advantage,
    )


async def evaluate(
    parts: Components, run: Run, watcher: Watcher, step: int, name: str, split: str, budget: Budget | None = None
) -> list[Trajectory]:
    """A `budget` learns how long it took: the evaluation behind the last step will take as long."""
    began, found = time.monotonic(), len(run.evaluated(name))
    trajectories = await evaluate_policy(parts, run, watcher, step, name, split)
    await parts.ranks.barrier("the evaluation is written down, so that all ranks know the best step")
    watcher.evaluated(run.evaluations()[-1])
    new = len(trajectories) - found
    if budget and new > 0:  # as long as if none of it had been there already
        tasks = len(trajectories) // parts.config.orchestrator.eval.rollouts_per_example
        budget.evaluated((time.monotonic() - began) * len(trajectories) / new, tasks)
    return trajectories


async def evaluate_before(
    parts: Components, run: Run, watcher: Watcher, budget: Budget | None = None
) -> list[Trajectory]:
    """What the run starts from and, where a supervised start came before it, the model itself: a start may have made it
    worse, and what RL then wins back is no gain."""
    split = parts.config.orchestrator.eval.test_split
    if run.first_step and (before := run.evaluation("before")):
        return before
    if wants_base(parts, run.config):
        await _evaluate_base(parts, run, watcher, split)
    before = await evaluate(parts, run, watcher, 0, "before", split, budget)
    if (start := base_gain(run, before)) and (worse := worse_start(start)):
        watcher.say(f"warning: {worse}")
    return before


async def _evaluate_base(parts: Components, run: Run, watcher: Watcher, split: str) -> None:
    version = parts.policy.version
    try:
        with parts.learner.base():
            await parts.engine.publish(version)
            await evaluate(parts, run, watcher, 0, "base", split)
    finally:
        await parts.engine.publish(version)


def checkpoint(parts: Components, run: Run, step: int, drawn: dict[str, Any] | None = None) -> None:
    run.fence()
    directory = run.path / "checkpoints"
    save_checkpoint(directory, parts.learner, step, drawn)
    if parts.ranks.first:
        prune(directory, parts.config.ckpt.keep_last, best_step(run))


def best_step(run: Run) -> int | None:
    """The evaluated step with the most success on the `eval` split, if any was evaluated: of several, and where there
    is no success, that with the best mean reward. One with scores that are too good to be true is withheld (D17)."""
    scored = [m for m in run.evaluations() if m["name"].startswith("step_") and m["episodes"]]
    scored = [m for m in scored if not m.get("too_good", {}).get("mean")]
    return max(scored, key=_how_good)["step"] if scored else None


def _how_good(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    success = success_in(evaluation, evaluation.get(NAME))
    return success[1]["mean"] if success else 0.0, evaluation["reward"]["mean"]
