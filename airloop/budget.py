"""A budget of time: a run is planned into the minutes it was given, and kept to them.

Before anything long begins, the machine is measured (speed.py) and everything that takes time (the supervised start,
steps of reinforcement learning, episodes a step, the evaluations) is made to fit, in an order of what matters least.
While the run goes on, the number of steps follows from the steps that were measured, and the last evaluation always
fits. Nothing is ever more than the config asked for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airloop.config import with_changes
from airloop.config.defaults import MOST_STEPS
from airloop.costs import ENDING_S, Amounts, Costs, EpisodeSize, Overhead, asked_for, costs_of
from airloop.evaluation import wants_base
from airloop.speed import Speed, measure_speed
from airloop.text.figures import duration

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.config import Config
    from airloop.events import Watcher
    from airloop.runs.run import Run

# Of the time that is left, this share is for what nobody can foresee: checkpoints, slower tasks, other work beside it.
MARGIN = 0.08
# A step is begun only if one and this share of it fit: steps differ, and the evaluation behind it must fit too.
STEP_MARGIN = 0.25
# Fewer show nothing: a run that is late still has so many.
LEAST_STEPS, LEAST_TASKS = 3, 12
# Supervised steps that take this many times what was forecast, or this share of it, change the plan.
ANOTHER_PACE = (1.15, 0.87)
# Steps that took less than this together say nothing of the machine: of milliseconds, one that was interrupted is many
# times as long.
SETTLED_S = 5.0
# The last so many steps say how long the next will take; the first of a run compiles and fills caches, and says little.
RECENT = 4


def shrink_order(asked: Amounts, group: int) -> list[tuple[str, int, int]]:
    """What is made smaller first, down to where, and in units of what. Steps beyond a dozen come first: a run without a
    number of steps asks for more than can be had. Then what matters least: fewer held-out tasks widen an interval,
    fewer steps learn less, a short supervised start leaves replies that cannot be read."""
    return [
        ("steps", min(asked.steps, 12), 1),
        ("num_examples", min(asked.num_examples, 24), 1),
        ("steps", min(asked.steps, 8), 1),
        ("warmstart_steps", -(-asked.warmstart_steps // 2), 1),
        ("batch_size", min(asked.batch_size, 2 * group), group),
        ("num_examples", min(asked.num_examples, LEAST_TASKS), 1),
        ("steps", min(asked.steps, LEAST_STEPS), 1),
    ]


def fit(asked: Amounts, costs: Costs, seconds: float, group: int) -> Amounts:
    """The most of what was asked for that fits into `seconds`, or the least that can show anything: a machine that is
    slow, or busy just now, still gets a result, later than asked for."""
    chosen = asked
    for name, floor, unit in shrink_order(asked, group):
        if costs.total(chosen) <= seconds:
            break
        now = getattr(chosen, name)
        sizes = range(now, min(now, floor) - 1, -unit)
        fitting = (a for a in (replace(chosen, **{name: size}) for size in sizes) if costs.total(a) <= seconds)
        chosen = next(fitting, replace(chosen, **{name: sizes[-1]}))
    return chosen


def changes_of(config: Config, chosen: Amounts) -> dict[str, Any]:
    """The keys of the config that differ, by their dotted names."""
    found: dict[str, Any] = {
        "max_steps": chosen.steps,
        "orchestrator.batch_size": chosen.batch_size,
        "orchestrator.eval.num_examples": chosen.num_examples,
    }
    if config.warmstart and chosen.warmstart_steps:
        found["warmstart.steps"] = chosen.warmstart_steps
    return found


class Budget:
    """The clock of one run with a budget. Time that earlier sessions of the run took counts."""

    def __init__(self, minutes: float, spent_s: float, asked: int) -> None:
        self.minutes = minutes
        self.asked = asked  # steps, before the machine was measured
        self._until = time.monotonic() + 60 * minutes - spent_s
        self._steps: list[float] = []  # seconds of those that were sampled, not replayed
        self._evaluation_s, self._evaluated_tasks = 0.0, 1
        self._mark = time.monotonic()
        self._planned: tuple[Amounts, Costs] | None = None  # asked for, and at which costs
        self._pace = 1.0  # of training, by the supervised steps: as many times the seconds that were forecast

    @classmethod
    def of(cls, run: Run) -> Budget | None:
        minutes = run.config.budget.minutes
        if minutes is None:
            return None
        facts = run.status().get("budget")
        # Before there was a plan nothing was made that could be gone on with: such a run has all of its time again.
        budget = cls(minutes, run.spent_s(this_session_only=not facts), run.config.max_steps)
        if facts:
            budget.recall(facts)
        return budget

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    async def plan(
        self,
        parts: Components,
        watcher: Watcher,
        size: EpisodeSize,
        demonstration_tokens: float | None,
        proofs: bool,
        ranks: int,
    ) -> dict[str, Any]:
        """The changes that make the config fit, said in three lines. Without `demonstration_tokens` there is no
        supervised start to be made. `ranks` will share the work of the run, whoever plans it."""
        watcher.phase("measuring this machine with the model, for the budget")
        speed = await measure_speed(parts)
        config = parts.config
        base = wants_base(parts, config)
        costs = costs_of(config, speed, size, demonstration_tokens or 0.0, proofs, ranks, base)
        asked = asked_for(config, warmstart=demonstration_tokens is not None)
        group = config.orchestrator.rollouts_per_example
        chosen = fit(asked, costs, self.left_s * (1 - MARGIN), group)
        self._planned = asked, costs
        for line in self._explain(speed, asked, chosen, costs):
            watcher.say(line)
        return changes_of(config, chosen)

    def plan_again(self, config: Config, seconds: Sequence[float]) -> dict[str, Any]:
        """After some steps of the supervised start, which took `seconds` each: the changes that make the config fit at
        this pace, none while it is about the one that was forecast. The first step warms up and says little."""
        if self._planned is None or len(seconds) < 3 or sum(seconds) < SETTLED_S:
            return {}
        asked, costs = self._planned
        pace = statistics.median(seconds[1:][-RECENT:]) / costs.warmstart_step
        self._pace = 1.0 if ANOTHER_PACE[1] <= pace <= ANOTHER_PACE[0] else pace
        costs, made = costs.times(self._pace), len(seconds)
        # As if all of it were still to be made, so that the same things become smaller first.
        whole = self.left_s * (1 - MARGIN) + made * costs.warmstart_step
        found = fit(asked, costs, whole, config.orchestrator.rollouts_per_example)
        return changes_of(config, replace(found, warmstart_steps=max(found.warmstart_steps, made)))

    def plan_steps(self, config: Config) -> dict[str, Any]:
        """When the evaluation before the first step has shown how long episodes take: how many steps, and episodes a
        step, fit into what is left. The machine was measured for some seconds, in which others may have used it."""
        if self._planned is None or not self._evaluation_s:
            return {}
        asked, costs = self._planned
        played = self._evaluation_s / costs.evaluation(replace(asked, num_examples=self._evaluated_tasks))
        costs = replace(
            costs,
            episode=played * costs.episode,
            trained_episode=self._pace * costs.trained_episode,
            evaluated_task=self._evaluation_s,  # all of them are one: what was evaluated before is evaluated after
            fixed=ENDING_S,
            evaluates_base=False,  # it was, before this evaluation
            sampling=costs.sampling.times(played),
            evaluating=Overhead(),
        )
        left = self.left_s * (1 - MARGIN) + self._evaluation_s  # as if the first evaluation were still to be made
        wanted = replace(asked, warmstart_steps=0, num_examples=1)
        found = fit(wanted, costs, left, config.orchestrator.rollouts_per_example)
        return {"max_steps": found.steps, "orchestrator.batch_size": found.batch_size}

    def _explain(self, speed: Speed, asked: Amounts, chosen: Amounts, costs: Costs) -> list[str]:
        spent = 60 * self.minutes - self.left_s
        most = chosen.steps if asked.steps >= MOST_STEPS else asked.steps
        count = costs.evaluations(chosen)
        evaluation = f"{count} evaluations on {_of(chosen.num_examples, asked.num_examples)} tasks"
        if chosen.num_examples < asked.num_examples:
            wider = (asked.num_examples / chosen.num_examples) ** 0.5
            evaluation += f" (intervals {wider:.1f} times as wide)"
        start = ""
        if chosen.warmstart_steps:
            steps = _of(chosen.warmstart_steps, asked.warmstart_steps)
            start = f"supervised start of {steps} steps ({duration(costs.warmstart(chosen))}), "
        late = costs.total(chosen) - self.left_s
        kept = "corrected as they are measured"
        if late > 0:
            kept = f"at the pace measured now the run ends {duration(late)} late: "
            kept += "this is the least that can show anything"
        return [
            f"budget: {self.minutes:g} min, {duration(spent)} spent; this machine computes {speed} (measured in "
            f"{speed.seconds:.0f} s)",
            f"  {start}{evaluation} ({duration(count * costs.evaluation(chosen))})",
            f"  {_of(chosen.steps, most)} steps of {_of(chosen.batch_size, asked.batch_size)} episodes, about "
            f"{duration(costs.step(chosen))} each; {kept}",
        ]

    def evaluated(self, seconds: float, tasks: int) -> None:
        """The evaluation before the first step took so long for so many tasks, or would have, had none of it been there
        already."""
        self._evaluation_s, self._evaluated_tasks = seconds, max(1, tasks)

    def begin_steps(self) -> None:
        """What came before the first step of this session, loading and evaluating, is no step's time."""
        self._mark = time.monotonic()

    def step_ended(self, replayed: bool) -> None:
        """From the end of the step before, so that checkpoints and evaluations in between count."""
        if not replayed:
            self._steps.append(time.monotonic() - self._mark)
        self._mark = time.monotonic()

    def steps_in_all(self, finished: int) -> int:
        """How many steps the run will have: those finished and those that still fit before the last evaluation."""
        if not self._steps:
            return max(finished, self.asked)
        usual = statistics.fmean((self._steps[1:] or self._steps)[-RECENT:])
        room = self.left_s - self._evaluation_s - ENDING_S - STEP_MARGIN * usual
        return min(self.asked, max(LEAST_STEPS, finished + max(0, int(room / usual))))

    def facts(self) -> Mapping[str, Any]:
        """What a resumed run needs to know of the sessions before it."""
        facts = {"asked": self.asked, "steps_s": self._steps[-RECENT - 1 :], "evaluation_s": self._evaluation_s}
        if self._planned is None:
            return facts
        amounts, costs = self._planned
        return {**facts, "planned": {"asked": asdict(amounts), "costs": costs.as_json(), "pace": self._pace}}

    def recall(self, facts: Mapping[str, Any]) -> None:
        self.asked = int(facts["asked"])
        self._steps = [float(s) for s in facts.get("steps_s", ())]
        self._evaluation_s = float(facts.get("evaluation_s", 0.0))
        if planned := facts.get("planned"):
            self._planned = Amounts(**planned["asked"]), Costs.from_json(planned["costs"])
            self._pace = float(planned["pace"])

    def settle(self) -> None:
        """The plan is put right; from here on the number of steps follows the clock, in later sessions, too."""
        self._planned = None


async def plan_steps(budget: Budget | None, parts: Components, run: Run, watcher: Watcher) -> None:
    """Before the first step: what the seconds of measuring got wrong is put right, on every rank alike."""
    if budget is None:
        return
    planned = (await parts.ranks.all_gather(budget.plan_steps(parts.config), "the steps that fit the budget"))[0]
    budget.settle()
    if run.writes:  # how long the evaluation took, for a session that finds it made
        run.note(budget=budget.facts())
    before = parts.config.max_steps, parts.config.orchestrator.batch_size
    if planned and (planned["max_steps"], planned["orchestrator.batch_size"]) != before:
        parts.config = with_changes(parts.config, planned)
        run.change(planned)
        steps, episodes = planned["max_steps"], planned["orchestrator.batch_size"]
        watcher.say(
            f"        budget: {duration(max(0.0, budget.left_s))} left; by the pace of that evaluation {steps} steps "
            f"of {episodes} episodes fit, not {before[0]} of {before[1]}"
        )


async def keep_to_budget(
    budget: Budget | None, parts: Components, run: Run, watcher: Watcher, finished: int, replayed: bool
) -> None:
    """After each step: the run's number of steps becomes what fits, which every rank must see alike."""
    if budget is None:
        return
    budget.step_ended(replayed)
    if run.recorded(finished):  # the next one is on disk too: it is read back, whatever the time
        return
    steps = (await parts.ranks.all_gather(budget.steps_in_all(finished), "how many steps fit the budget"))[0]
    before = run.config.max_steps
    if steps != before:
        parts.config = with_changes(parts.config, {"max_steps": steps})
        run.change({"max_steps": steps})
    if abs(steps - before) > 1 or steps == finished < before:
        watcher.say(
            f"        budget: {duration(max(0.0, budget.left_s))} left, so {steps} steps in all instead of {before}"
        )
    if run.writes:
        run.note(budget=budget.facts())


def _of(chosen: int, asked: int) -> str:
    return str(chosen) if chosen == asked else f"{chosen} of {asked}"
