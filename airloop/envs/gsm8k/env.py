"""GSM8K: a word problem, a reply with its working, one number as the answer.

`gsm8k` is a single turn of plain text. `gsm8k-calculator` is the same problems with two tools, a calculator and one
that takes the answer. Both pay `correct` alone; the form is measured, and paid for where a config asks for it
(rewards = { correct = 1.0, format = 0.1 }), which taught a real model to give up its working for a well-formed guess.
Each length of the reference solution is counted by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.envs.gsm8k.answers import Number, find_answer, has_form, read_number, same
from airloop.envs.gsm8k.calculator import CalculatorError, calculate
from airloop.envs.gsm8k.data import GENERATED_COUNTS, Problem, load_problems
from airloop.envs.gsm8k.scripted import calculator_agent, text_agent
from airloop.envs.paths import Anchored
from airloop.envs.rows import GENERATED, anchored_source
from airloop.types import Action, Agent, Message, Observation, Score, Task, Trajectory

log = logging.getLogger(__name__)

MOST_STEPS = 7  # solutions of so many calculations or more share a curve

TEXT = (
    "Solve the problem step by step, in short lines. "
    "The last line must be #### followed by the answer as a plain number, for instance: #### 42"
)
TOOLS = (
    "Solve the problem step by step. Compute with the tool calculator. "
    "Give the answer with the tool final_answer, as a plain number."
)
FINAL = "final_answer"
SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "for instance (16 - 4) * 2.5"}},
                "required": ["expression"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": FINAL,
            "description": "Gives the answer and ends the task.",
            "parameters": {
                "type": "object",
                "properties": {"answer": {"type": "string", "description": "one plain number, for instance 42"}},
                "required": ["answer"],
            },
        },
    },
)
COMPONENTS = ("correct", "format")
ARGUMENT = {"calculator": "expression", FINAL: "answer"}


class Gsm8kArgs(EnvArgs):
    dataset: Annotated[str | None, Anchored(anchored_source)] = Field(
        default=None,
        description='"openai/gsm8k,main", a directory, or a jsonl(.gz) file, with a slice if wanted ("…,train[:256]"); '
        '"generated", or nothing: word problems in the same form that air makes itself',
    )
    test_dataset: Annotated[str | None, Anchored(anchored_source)] = Field(
        default=None, description="the test rows; by default those of dataset, or a tenth of it where it is one file"
    )
    eval_share: float = Field(default=0.05, gt=0, lt=0.5, description="of the training rows, held out as eval")
    max_calculations: int | None = Field(
        default=None, ge=1, description="only problems whose reference solution has at most so many"
    )


class CalculatorArgs(Gsm8kArgs):
    max_turns: int = Field(default=10, ge=1, description="replies an episode may have")


class TextSession(Session):
    def __init__(self, task: Task, names: Collection[str]) -> None:
        self.task = task
        self.names = names  # of the reward components that count
        self.given: Number | None = None
        self.formed = False

    async def begin(self) -> Opening:
        return _opening(TEXT, self.task)

    async def act(self, action: Action) -> Observation:
        self.given = find_answer(action.text)
        self.formed = has_form(action.text)
        return Observation("", done=True, failed=self.given is None)

    async def finish(self) -> Score:
        return _score(self.task, self.given, self.formed, {}, self.names)


class CalculatorSession(Session):
    def __init__(self, task: Task, names: Collection[str]) -> None:
        self.task = task
        self.names = names  # of the reward components that count
        self.given: Number | None = None
        self.calls = self.errors = 0

    async def begin(self) -> Opening:
        return _opening(TOOLS, self.task, SCHEMAS)

    async def act(self, action: Action) -> Observation:
        key = ARGUMENT.get(action.name)
        if key is None:
            return self._refused(f"There is no tool {action.name[:40]!r}. Call calculator or final_answer.")
        value = action.arguments.get(key)
        if set(action.arguments) != {key} or isinstance(value, bool) or not isinstance(value, str | int | float):
            example = "16 - 3 * 4" if key == "expression" else "42"
            return self._refused(f'{action.name} takes one argument: {{"{key}": "{example}"}}.')
        return self._compute(str(value)) if key == "expression" else self._answer(str(value))

    def _compute(self, expression: str) -> Observation:
        self.calls += 1
        try:
            return Observation(calculate(expression))
        except CalculatorError as error:
            return self._refused(str(error))

    def _answer(self, text: str) -> Observation:
        self.given = read_number(text)
        if self.given is None:
            return self._refused("The answer must be one plain number, for instance 42.")
        return Observation("", done=True)

    def _refused(self, why: str) -> Observation:
        self.errors += 1
        return Observation(why, failed=True)

    def invalid(self, action: Action) -> Observation:
        return self._refused(action.text)

    async def finish(self) -> Score:
        counts = {"calculator_calls": float(self.calls), "tool_errors": float(self.errors)}
        return _score(self.task, self.given, self.given is not None and not self.errors, counts, self.names)


def _opening(system: str, task: Task, tools: tuple[Mapping[str, Any], ...] = ()) -> Opening:
    user = Message(role="user", content=task.payload["question"])
    return Opening((Message(role="system", content=system), user), tools)


def _score(
    task: Task, given: Number | None, formed: bool, counts: Mapping[str, float], names: Collection[str]
) -> Score:
    reference = read_number(task.payload["answer"])
    assert reference is not None  # checked when the row was read
    measured = {"correct": float(given is not None and same(given, reference)), "format": float(formed)}
    rewards = {name: value for name, value in measured.items() if name in names}
    return Score(rewards, {**measured, "answered": float(given is not None), **counts})


class Gsm8kEnv(Environment[Gsm8kArgs]):
    """Grade-school word problems, answered in one reply."""

    name: ClassVar[str] = "gsm8k"
    action_format: ClassVar[ActionFormat] = "text"
    success: ClassVar[str | None] = "correct"
    family_label: ClassVar[str] = "steps"
    reward_weights: Mapping[str, float] = {"correct": 1.0}
    # Form without an answer is worth nothing: a config that pays nothing else is refused.
    shaping: Mapping[str, float] = MappingProxyType({"format": 0.1})

    @property
    def components(self) -> tuple[str, ...]:
        return COMPONENTS

    @property
    def max_turns(self) -> int:
        return 1

    def warm(self) -> None:
        if self.args.dataset is None:
            log.warning(
                "%s: no data set is named, so the tasks are generated word problems, not GSM8K. "
                'For the genuine rows: args = { dataset = "openai/gsm8k,main" }, or a jsonl(.gz) file.',
                self.name,
            )

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks.get(split, ())

    def count(self, split: str) -> int:
        if self.args == type(self.args)():
            return GENERATED_COUNTS[split]
        return super().count(split)

    @cached_property
    def _tasks(self) -> dict[str, tuple[Task, ...]]:
        args = self.args
        splits = load_problems(args.dataset, args.test_dataset, args.eval_share, args.max_calculations)
        return {split: tuple(self._task(problem, split) for problem in found) for split, found in splits.items()}

    def _task(self, problem: Problem, split: str) -> Task:
        payload = {
            "question": problem.question,
            "answer": problem.result,
            "solution": problem.solution,
            "expressions": [list(step) for step in problem.expressions],
        }
        label = f"{self.name}-{GENERATED}" if problem.id.startswith(GENERATED) else self.name
        steps = f"{MOST_STEPS}-up" if problem.steps >= MOST_STEPS else str(problem.steps)
        return Task(self.name, problem.id, split, payload, family=f"{label}-steps-{steps}")

    def answer_of(self, trajectory: Trajectory) -> str | None:
        given = find_answer(trajectory.turns[-1].reply["content"]) if trajectory.turns else None
        return str(given.value) if given else None

    def open(self, task: Task, seed: int) -> Session:
        return TextSession(task, self.reward_weights)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return text_agent(name, task, seed)


class Gsm8kCalculatorEnv(Gsm8kEnv):
    """Grade-school word problems, worked out with a calculator."""

    name: ClassVar[str] = "gsm8k-calculator"
    action_format: ClassVar[ActionFormat] = "tools"
    Args: ClassVar[type[EnvArgs]] = CalculatorArgs

    args: CalculatorArgs

    @property
    def max_turns(self) -> int:
        return self.args.max_turns

    def answer_of(self, trajectory: Trajectory) -> str | None:
        last = trajectory.turns[-1].actions[-1:] if trajectory.ending == "done" else ()
        said = [str(action.arguments.get(ARGUMENT[FINAL], "")) for action in last if action.name == FINAL]
        given = read_number(said[0]) if said else None
        return str(given.value) if given else None

    def open(self, task: Task, seed: int) -> Session:
        return CalculatorSession(task, self.reward_weights)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return calculator_agent(name, task, seed, self.max_turns)
