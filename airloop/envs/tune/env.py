"""The environment `tune`: the agent trains scikit-learn models on a real table and submits the last one.

Three commands, `python train.py --model …`, `validate` and `submit`, in a sandbox that has nothing else: no
command is executed, no file can be read. Fits are real (pool.py); scores that count are on rows the agent
never sees, and belong to a model trained in this very episode.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.envs.tune.catalogue import BY_NAME, DATASETS
from airloop.envs.tune.command import BASELINE, Command, CommandError, parse
from airloop.envs.tune.pool import FitPool, Scores
from airloop.envs.tune.scripted import scripted_agent
from airloop.errors import AirError
from airloop.types import Action, Agent, Message, Observation, Score, Task

SCORES_FILE = Path(__file__).with_name("scores.json")
TASKS_PER_DATASET = 4
METRICS = {"classification": "accuracy", "regression": "r2"}
DIRECTIONS = {"accuracy": 1.0, "r2": 1.0}  # both: higher is better
FLOORS = {"accuracy": 0.5, "r2": 0.5}  # smallest |baseline| an improvement is divided by
COMPONENTS = ("tool", "improvement", "headroom", "idle")
TOOL_REWARD = 0.5
# No model is worth this, and so is one that would be worth less: to train is never the worse choice.
WORST_IMPROVEMENT = -2.0
WORST_HEADROOM = -1.0
# To train the baseline anew is nobody's work, and no improvement: stored scores have six digits, and machines differ in
# the last of them.
IDLE = -0.5
SAME = 1e-5

SYSTEM = """\
Tune a model. Reply with one command in a ``` block. Commands:
python train.py --model {linear,tree,forest,boost,knn,svm} [--scale]
--depth 1-16 (tree, forest, boost) --trees 1-50 (forest, boost) --lr 0.01-1 (boost) --k 1-50 (knn) \
--C 0.01-100 (linear, svm)
validate
submit"""
USER = """\
{dataset}: {kind}, {rows} rows, {features} features.
Baseline, untuned linear: cv {metric} {baseline:.4f}
Beat it on hidden rows. Your last model counts. {turns} turns."""


class TuneArgs(EnvArgs):
    max_turns: int = Field(default=4, ge=1, description="replies in an episode")
    workers: int | None = Field(default=None, ge=1, description="fitting processes; default: cores, at most 2")
    reward: Literal["improvement", "headroom"] = Field(
        default="improvement", description="what a submission is worth where rewards names none"
    )
    fit_timeout_s: float = Field(default=20.0, gt=0, description="deadline of one fit, in seconds that it computes")
    cache: bool = Field(default=True, description="keep results of fits, in memory and on disk")
    datasets: list[str] | None = Field(default=None, description="only these data sets")
    tasks_per_dataset: int = Field(
        default=TASKS_PER_DATASET, ge=1, le=TASKS_PER_DATASET, description="row draws of each"
    )


class TuneSession(Session):
    def __init__(self, task: Task, args: TuneArgs, pool: FitPool, names: Collection[str]) -> None:
        self.task = task
        self.names = names  # of the reward components that count
        self.args = args
        self.pool = pool
        self.metric: str = task.payload["metric"]
        self.baseline: Scores = task.payload["baseline"]
        # Of the last training command that ran, in this session: what validate and submit score.
        self.model: Scores | None = None
        self.model_name = ""
        self.validated = self.submitted = False
        self.failed_commands = 0

    async def begin(self) -> Opening:
        facts = {**self.task.payload, "baseline": self.baseline["cv"], "turns": self.args.max_turns}
        return Opening((Message(role="system", content=SYSTEM), Message(role="user", content=USER.format(**facts))))

    async def act(self, action: Action) -> Observation:
        try:
            command = parse(action.text)
            text = await self.run(command)
        except CommandError as error:
            return self.failed(str(error))
        if command.ignored:
            text += "\n(only the first line ran)"
        return Observation(text, self.tool(TOOL_REWARD), done=self.submitted)

    def invalid(self, action: Action) -> Observation:
        return self.failed(action.text)

    def failed(self, text: str) -> Observation:
        self.failed_commands += 1
        return Observation(text, self.tool(-TOOL_REWARD), failed=True)

    def tool(self, worth: float) -> dict[str, float]:
        return {"tool": worth} if "tool" in self.names else {}

    async def run(self, command: Command) -> str:
        payload = self.task.payload
        if command.kind == "train":
            self.model = await self.pool.fit(payload["dataset"], payload["seed"], command.config, payload["digest"])
            self.model_name = command.config["model"]
            return f"cv {self.metric} {self.model['cv']:.4f}"
        if self.model is None:
            raise CommandError(f"{command.kind}: no model found, run train.py first")
        if command.kind == "validate":
            self.validated = True
            return (
                f"valid submission: {self.model_name}\nbaseline {self.metric} {self.baseline['valid']:.4f}\n"
                f"your {self.metric} {self.model['valid']:.4f}"
            )
        self.submitted = True
        return "submitted"

    async def finish(self) -> Score:
        """Submitted or not, the last trained model is scored; without one the worst is given."""
        baseline, reference = self.baseline["test"], self.task.payload["reference"]
        sign = DIRECTIONS[self.metric]
        if self.model is None:
            score, gain = 0.0, 0.0
            rewards = {"improvement": WORST_IMPROVEMENT, "headroom": WORST_HEADROOM}
        else:
            score = self.model["test"]
            gain = sign * (score - baseline)
            rewards = {
                "improvement": max(WORST_IMPROVEMENT, 10 * gain / max(abs(baseline), FLOORS[self.metric])),
                "headroom": min(1.0, max(WORST_HEADROOM, gain / (sign * (reference - baseline)))),
            }
        # Another model may tie with the baseline: that is work.
        idle = self.model_name == BASELINE["model"] and abs(gain) <= SAME
        metrics = {
            "score": score,
            "baseline": baseline,
            "reference": reference,
            "trained": float(self.model is not None),
            "improved": float(gain > SAME),
            "idle": float(idle),
            "validated": float(self.validated),
            "submitted": float(self.submitted),
            "commands_failed": float(self.failed_commands),
        }
        rewards["idle"] = IDLE if idle else 0.0
        return Score({name: value for name, value in rewards.items() if name in self.names}, metrics)


class TuneEnv(Environment[TuneArgs]):
    name: ClassVar[str] = "tune"
    action_format: ClassVar[ActionFormat] = "command"
    success: ClassVar[str | None] = "improved"
    # Per-turn components: how an episode's turns become one number.
    turn_reward_mode: Mapping[str, Literal["sum", "mean"]] = {"tool": "mean"}
    # Neither a command that ran nor a price is a success: at these weights they cannot lift who trains nothing above
    # who does.
    shaping: Mapping[str, float] = {"tool": 1.0, "idle": 1.0}
    penalties: ClassVar[tuple[str, ...]] = ("idle",)
    dishonest: ClassVar[tuple[str, ...]] = ("noop", "cheat", "idle")
    reward_weights: Mapping[str, float] = {"tool": 1.0, "improvement": 1.0, "idle": 1.0}

    def __init__(self, args: TuneArgs | None = None) -> None:
        super().__init__(args)
        self.reward_weights = {"tool": 1.0, self.args.reward: 1.0, "idle": 1.0}
        for name in self.args.datasets or ():
            check_dataset(name)
        self._pool: FitPool | None = None

    @property
    def components(self) -> tuple[str, ...]:
        return COMPONENTS

    @property
    def max_turns(self) -> int:
        return self.args.max_turns

    @property
    def pool(self) -> FitPool:
        if self._pool is None:
            workers = self.args.workers or min(2, os.cpu_count() or 1)
            self._pool = FitPool(workers, self.args.fit_timeout_s, self.args.cache)
        return self._pool

    def warm(self) -> None:
        """Starts the fitting processes in the background, so that they import while a model loads."""
        self.pool.warm()

    def tasks(self, split: str) -> Sequence[Task]:
        """Draw by draw, so that the first few tasks already come from all data sets of the split."""
        chosen = [
            d
            for d in DATASETS
            if d.split == split and d.name in measured() and (not self.args.datasets or d.name in self.args.datasets)
        ]
        return [
            Task(self.name, f"{dataset.name}-{seed}", split, payload(dataset.name, seed))
            for seed in range(self.args.tasks_per_dataset)
            for dataset in chosen
        ]

    def open(self, task: Task, seed: int) -> TuneSession:
        """Nothing in this sandbox is random: the seed is not used."""
        return TuneSession(task, self.args, self.pool, self.reward_weights)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return scripted_agent(name, task, seed, self.args.max_turns)

    def abandon(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.abandon)


def check_dataset(name: str) -> None:
    usable = [dataset.name for dataset in DATASETS if dataset.split != "none" and dataset.name in measured()]
    if name in usable:
        return
    near = difflib.get_close_matches(name, usable, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    problem = f"Environment 'tune' has no data set {name!r}."
    if name in BY_NAME:
        problem = f"The data set {name!r} of 'tune' gives no tasks: no headroom above its baseline was measured."
    raise AirError(problem, f"{hint}Known: {', '.join(sorted(usable))}.")


@cache
def measured() -> Mapping[str, Any]:
    """Baselines and references, by data set: what `python -m airloop.envs.tune.measure` wrote."""
    stored: Mapping[str, Any] = json.loads(SCORES_FILE.read_text(encoding="utf-8"))["datasets"]
    return stored


def payload(name: str, seed: int) -> Mapping[str, Any]:
    facts = measured()[name]
    kind = BY_NAME[name].kind
    return {
        "dataset": name,
        "kind": kind,
        "seed": seed,
        "metric": METRICS[kind],
        "direction": "up",
        "rows": facts["rows"]["train"],
        "features": facts["features"],
        "digest": facts["digest"],
        "baseline": facts["tasks"][seed]["baseline"],
        "reference": facts["tasks"][seed]["reference"],
    }
