"""Rows of a data set and reward functions, as TRL's trainers take them: no code but the functions.

An episode is one reply to the prompt of a row. Each function is a reward component and a metric of its own name; one of
them, the first unless `success` says otherwise, is what is wanted, from 0 to 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.envs.paths import Anchored, code
from airloop.envs.prompts.functions import Reply, check_parameters, load_functions
from airloop.envs.prompts.prompts import Prompt, Prompts, load_prompts
from airloop.envs.rows import anchored_source
from airloop.envs.script import Script
from airloop.errors import AirError, InfraError, TaskProblem
from airloop.text.spelling import misspelt
from airloop.types import Action, Agent, Message, Observation, Score, Task

# Replies that functions are tried with, besides the right one: what a model may well say.
TRIALS = ("", "A reply.")
SEVERAL = "success"  # the metric's name where several functions decide it
MEND = "mend the function: it must give one number for any reply, or None where it does not apply."


class PromptsArgs(EnvArgs):
    dataset: Annotated[str, Anchored(anchored_source)] = Field(
        min_length=1, description="a jsonl(.gz) file, a directory or a hub id: path[,config[,split[:slice]]]"
    )
    rewards: Annotated[list[str], Anchored(code)] = Field(
        min_length=1,
        description='functions of files: ["./rewards.py:correct", "./rewards.py:length"]; of a file alone, all that '
        "are marked with @airloop.reward",
    )
    prompt: str = Field(default="prompt", description="the column with the prompts: texts, or lists of chat messages")
    system: str = Field(default="", description="a system message before every prompt")
    answer: str = Field(default="", description="the column with a right reply, for the oracle and demonstrations")
    success: list[str] = Field(
        default_factory=list,
        description="the function that says what is wanted, from 0 to 1; of several, the first that applies to a row; "
        'by default the first of rewards; "none": only the reward is known',
    )
    shaping: list[str] = Field(
        default_factory=list, description="functions that say nothing of success by themselves: a length, a form"
    )
    test_dataset: Annotated[str | None, Anchored(anchored_source)] = Field(
        default=None, description="the test rows; by default the split test of dataset, or a tenth of its rows"
    )
    eval_share: float = Field(default=0.05, gt=0, lt=0.5, description="of the training rows, held out as eval")

    @field_validator("rewards", "success", "shaping", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("rewards")
    @classmethod
    def _found(cls, value: list[str]) -> list[str]:
        """Imports the files: what is wrong with one is told with the config's other mistakes, and its line there."""
        try:
            load_functions(value)
        except AirError as error:
            raise ValueError(f"{error.problem.rstrip('.')}: {error.fix.rstrip('.?')}") from error
        return value


class PromptsSession(Session):
    def __init__(self, env: PromptsEnv, prompt: Prompt) -> None:
        self.env = env
        self.prompt = prompt
        self.text = ""

    async def begin(self) -> Opening:
        system = self.env.args.system
        return Opening((*([Message(role="system", content=system)] if system else []), *self.prompt.messages))

    async def act(self, action: Action) -> Observation:
        self.text = action.text
        return Observation("", done=True)

    async def finish(self) -> Score:
        """Of an episode without a reply as of an empty one."""
        reply = Reply(self.prompt.prompt, self.text, self.reply_ids, self.prompt.columns, self.prompt.where)
        # Not asked of an agent without tokens: what counts them does not apply to it.
        asked = [f for f in self.env.functions if reply.ids is not None or not f.reads_ids]
        given = await asyncio.gather(*(f.score(reply) for f in asked))
        return self.env.score({f.name: value for f, value in zip(asked, given, strict=True)}, reply)


class PromptsEnv(Environment[PromptsArgs]):
    """Rows of a data set, and reward functions in the form of TRL's."""

    name: ClassVar[str] = "prompts"
    action_format: ClassVar[ActionFormat] = "text"
    # How these functions could be cheated nobody but their author knows; the audit has six that need not.
    dishonest: ClassVar[tuple[str, ...]] = ("noop",)

    def __init__(self, args: PromptsArgs | None = None) -> None:
        super().__init__(args)
        self.functions = load_functions(self.args.rewards)
        self.reward_weights = {function.name: function.weight for function in self.functions}
        self._check_names()
        self.shaping = dict.fromkeys(self.args.shaping, 1.0)
        self.beyond_scripts = [function.name for function in self.functions if function.reads_ids]
        self.wanted = () if self.args.success == ["none"] else tuple(self.args.success) or self.components[:1]
        self.success = SEVERAL if len(self.wanted) > 1 else next(iter(self.wanted), None)  # type: ignore[misc]

    def _check_names(self) -> None:
        for key in ("success", "shaping"):
            for name in getattr(self.args, key):
                if name not in self.components and (key, name) != ("success", "none"):
                    near = misspelt(name, self.components)
                    hint = f"did you mean {near!r}? " if near else ""
                    raise AirError(
                        f"{key} = {name!r} is none of the reward functions.", f"{hint}They are {self._names()}."
                    )
        if SEVERAL in self.components and (self.args.success or self.components[:1]) not in ([SEVERAL], (SEVERAL,)):
            raise AirError(f"A reward function is called {SEVERAL!r}, and is not the success.", "rename it.")

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.functions)

    def _names(self) -> str:
        return ", ".join(self.components)

    def weigh(self, weights: Mapping[str, float]) -> None:
        super().weigh(weights)
        self.shaping = {name: weights.get(name) or 1.0 for name in self.args.shaping}
        self.count("train")  # whoever weighs is about to load a model: the rows are read, the functions tried

    # --- tasks ----------------------------------------------------------------------------------------------

    @cached_property
    def _prompts(self) -> Prompts:
        args = self.args
        found = load_prompts(args.dataset, args.test_dataset, args.prompt, args.eval_share)
        if args.answer and args.answer not in found.columns:
            near = misspelt(args.answer, found.columns)
            hint = f"did you mean {near!r}? " if near else ""
            raise AirError(
                f"answer = {args.answer!r} is no column of {args.dataset!r}.",
                f"{hint}It has: {', '.join(found.columns)}.",
            )
        for function in self.functions:
            check_parameters(function, found.columns, args.dataset)
        prompts = [prompt for split in found.splits.values() for prompt in split]
        if args.system:
            self._check_system(prompts)
        self._try(prompts[0])
        return found

    def _check_system(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if prompt.messages[0]["role"] == "system":
                raise AirError(f"{prompt.where} has a system message, and args.system is another.", "leave one out.")

    def _try(self, prompt: Prompt) -> None:
        """On one row, before a model is loaded."""
        right = [self._right(prompt)] if self.args.answer else []
        for text in (*right, *TRIALS):
            reply = Reply(prompt.prompt, text, tuple(range(len(text))), prompt.columns, f"a trial on {prompt.where}")
            try:
                self.score({function.name: function.try_on(reply) for function in self.functions}, reply)
            except InfraError as error:
                raise AirError(str(error), MEND) from error

    @cached_property
    def _by_id(self) -> dict[str, Prompt]:
        return {prompt.id: prompt for split in self._prompts.splits.values() for prompt in split}

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            Task(self.name, prompt.id, split, {"prompt": prompt.prompt, "columns": dict(prompt.columns)})
            for prompt in self._prompts.splits.get(split, ())
        ]

    def count(self, split: str) -> int:
        return len(self._prompts.splits.get(split, ()))

    def check_tasks(self) -> Iterator[TaskProblem]:
        try:
            self.count("train")
        except AirError as error:
            yield TaskProblem("fail", error.problem, "no episode could be opened or scored", error.fix)

    # --- episodes -------------------------------------------------------------------------------------------

    def open(self, task: Task, seed: int) -> Session:
        kept = self._by_id.get(task.id)
        return PromptsSession(
            self, kept or Prompt(task.id, task.payload["prompt"], task.payload["columns"], f"the row {task.id}")
        )

    def score(self, given: Mapping[str, float | None], reply: Reply) -> Score:
        """Of what the functions gave. One that does not apply to the row has no part in it, as in TRL."""
        values = {name: value for name, value in given.items() if value is not None}
        if not values:
            raise InfraError(f"None of the reward functions ({self._names()}) applies to {reply.shown}.")
        metrics = {**values, **self._succeeded(values, reply)}
        return Score({name: value for name, value in values.items() if name in self.reward_weights}, metrics)

    def _succeeded(self, values: Mapping[str, float], reply: Reply) -> dict[str, float]:
        if self.success is None:
            return {}
        name = next((name for name in self.wanted if name in values), None)
        if name is None:
            raise InfraError(
                f"Success is {' or '.join(self.wanted)}, which says nothing of {reply.shown}: name all functions that "
                f'decide it, for instance success = ["{self.wanted[0]}", …], or success = "none".'
            )
        if not 0.0 <= values[name] <= 1.0:
            raise AirError(
                f"The reward function {name} is the success, a share from 0 to 1; it gave {values[name]:g}, for "
                f"{reply.shown}.",
                f'name another of {self._names()} with success = "…" in args, or success = "none".'
                if len(self.functions) > 1
                else 'write success = "none" in args: then only the reward is known.',
            )
        return {self.success: values[name]}

    def _right(self, prompt: Prompt) -> str:
        answer = prompt.columns[self.args.answer]
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise AirError(
                f"The column {self.args.answer!r} of {prompt.where} is a {type(answer).__name__}, no reply.",
                "name a column of texts or numbers as the answer.",
            )
        return str(answer)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        if name == "noop":
            return Script("")
        if name not in ("oracle", "demo"):
            raise AirError(f"Environment {self.name!r} has no scripted agent {name!r}.", "known: oracle, demo, noop.")
        if not self.args.answer:
            raise AirError(
                f"Environment {self.name!r} has no scripted agent {name!r} without a column that says what is right.",
                f'name it in args: answer = "…", one of {", ".join(self._prompts.columns)}.',
            )
        return Script(self._right(self._by_id[task.id]))
