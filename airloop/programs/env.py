"""The environment `program`: episodes are played by agents of the user's own, which ask the policy as any model."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from airloop import own_code
from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, code, existing
from airloop.envs.rows import Row, anchored_source
from airloop.envs.splits import read_with_test, share_out
from airloop.errors import AirError, MissingRequirement, TaskProblem
from airloop.programs.command import FINISH_S, Command, CommandArgs, check_command
from airloop.programs.function import Function
from airloop.programs.remote_agents import RemoteAgents, RemoteArgs, check_remote
from airloop.rollout.program import MEASURED, Address, ProgramEnvironment
from airloop.types import Agent, Message, Score, Task

SCORE = "score"  # what a function's single number is called
REWARD = "reward"
SYSTEM = "system:"
SLACK_S = 60.0
ANSWERS = {"answer", "answers", "expected", "gold", "label", "labels", "solution", "solutions", "target", "targets"}
P = TypeVar("P", bound="AgentProgramArgs")


class AgentProgramArgs(EnvArgs):
    """The arguments of every environment whose episodes are run by programs."""

    eval_share: float = Field(default=0.05, gt=0, lt=0.5, description="of the training rows, held out as eval")
    python: Annotated[str, Anchored(existing)] = Field(
        default="", description="the interpreter that runs it: of an environment of its own; by default this one"
    )
    max_requests: int = Field(default=64, ge=1, description="the most that an episode may ask")
    train: str = Field(
        default="all",
        description='the replies that are trained: "all", "main" (of conversations that open as the episode\'s first '
        'does) or "system:TEXT" (of those whose system message has that text)',
    )
    scripts: Annotated[dict[str, str], Anchored(code)] = Field(
        default_factory=dict,
        description='functions (task, messages[, random]) → text in the model\'s place: { oracle = "./scripts.py:f" }; '
        "for audits and, as demo, for a supervised start",
    )

    @model_validator(mode="after")
    def _known(self) -> AgentProgramArgs:
        if self.train not in ("all", "main") and not self.train.removeprefix(SYSTEM).strip():
            raise ValueError("train names no text after system:")
        if self.train not in ("all", "main") and not self.train.startswith(SYSTEM):
            raise ValueError(f'train = {self.train!r}: write "all", "main" or "system:TEXT"')
        return self


class ProgramArgs(AgentProgramArgs, CommandArgs, RemoteArgs):
    tasks: Annotated[str, Anchored(anchored_source)] = Field(
        min_length=1, description="a jsonl(.gz) file, a directory or a hub id: each row is a task"
    )
    test_tasks: Annotated[str | None, Anchored(anchored_source)] = Field(
        default=None, description="the test rows; by default the split test of tasks, or a tenth of its rows"
    )
    function: Annotated[str, Anchored(code)] = Field(
        default="", description='the agent: "./my_agent.py:solve"; said by the id where that names it'
    )
    success: str = Field(default=SCORE, description='the score that says what is wanted, from 0 to 1; "none": no one')

    @model_validator(mode="after")
    def _one_agent(self) -> ProgramArgs:
        if len(named := [name for name in ("function", "command", "remote") if getattr(self, name)]) > 1:
            raise ValueError(f"{named[0]} and {named[1]} both say who the agent is: leave one out")
        check_command(self, self.python)
        check_remote(self)
        return self


class ScriptedModel:
    """A function in place of the model: the program is unchanged."""

    def __init__(self, function: str, task: Task, seed: int) -> None:
        path = own_code.check_file(function, "script", "correct its path.")
        name = own_code.split_id(function)[2]
        found = getattr(own_code.load_module(path), name, None)
        if not callable(found):
            raise AirError(f"{path} has no function {name!r}.", "correct args = { scripts = … }.")
        self._function, self._task, self._random = found, dict(task.payload), random.Random(seed)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        arguments = (self._task, list(messages), self._random)[: len(inspect.signature(self._function).parameters)]
        returned = self._function(*arguments)
        text = await returned if inspect.isawaitable(returned) else returned
        if not isinstance(text, str):
            raise AirError(f"The script gave {text!r}, and must give a text.", "correct it.")
        return Message(role="assistant", content=text)


class AgentProgramEnv(ProgramEnvironment[P]):
    """An environment whose episodes are run by programs, with those arguments."""

    @property
    def max_turns(self) -> int:
        return self.args.max_requests

    def trains(self, messages: Sequence[Message], first: Sequence[Message]) -> bool:
        if self.args.train == "main":
            return messages[0] == first[0]
        if self.args.train.startswith(SYSTEM):
            wanted = self.args.train.removeprefix(SYSTEM)
            return any(message["role"] == "system" and wanted in message["content"] for message in messages)
        return True

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        if name in self.args.scripts:
            return ScriptedModel(self.args.scripts[name], task, seed)
        return super().scripted(name, task, seed)


class ProgramEnv(AgentProgramEnv[ProgramArgs]):
    """An agent of the user's own that asks the policy as it would ask any model."""

    name: ClassVar[str] = "program"
    function: ClassVar[str] = ""  # where the config's id names it
    success: ClassVar[str | None] = SCORE
    reward_weights: Mapping[str, float] = {SCORE: 1.0}

    @classmethod
    def of(cls, function: str) -> type[ProgramEnv]:
        """The environment of "./my_agent.py:solve"."""
        return type("ProgramEnv", (cls,), {"function": function, "name": Path(own_code.split_id(function)[0]).stem})

    def __init__(self, args: ProgramArgs | None = None) -> None:
        super().__init__(args)
        self.runner, self.finish_s = self._make_runner()
        self.success = None if self.args.success == "none" else self.args.success  # type: ignore[misc]

    def _make_runner(self) -> tuple[Function | Command | RemoteAgents, float]:
        """What runs the episodes, and how long that may take beside the agent's own time."""
        args, named = self.args, self.function or self.args.function
        if self.function and (args.command or args.remote):
            other = "command" if args.command else "remote"
            raise AirError(
                f"The id names the agent {named}, and args has {other} beside it.",
                f'with {other} write id = "program".',
            )
        if args.command:
            return Command(args, args.python, (args.tasks, args.test_tasks)), FINISH_S
        if args.remote:
            return RemoteAgents(args), args.patience_s + SLACK_S
        if named:
            return Function(named, args.python), 0.0
        raise AirError(
            "The environment 'program' is not told which program.",
            'id = "./my_agent.py:solve"; or args = { command = ["python", "agent.py"], files = "./agent", '
            'scorer = "./score.py:score" }; or, for agents that live elsewhere, args = { remote = true }.',
        )

    # --- tasks ----------------------------------------------------------------------------------------------

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        rows, test_rows = read_with_test(self.args.tasks, self.args.test_tasks)
        if not rows:
            raise AirError(f"The data set {self.args.tasks!r} has no rows.", "name another, or a longer slice.")
        splits = share_out(by_hash(rows), by_hash(test_rows), self.args.eval_share)
        made = {split: [self._task(*one, split) for one in found.items()] for split, found in splits.items()}
        if absent := [name for name in self.args.hidden if not any(name in row for row in (*rows, *test_rows))]:
            raise AirError(
                f"hidden names the column {absent[0]!r}, and no row has one.", "correct args = { hidden = … }."
            )
        ids = Counter(task.id for tasks in made.values() for task in tasks)
        if twice := [id for id, count in ids.items() if count > 1]:
            raise AirError(
                f"Of the tasks in {self.args.tasks!r} several have the id {twice[0]!r}.",
                "give each row an id of its own, or none.",
            )
        return made

    def _task(self, hashed: str, row: Mapping[str, Any], split: str) -> Task:
        return Task(self.name, str(row.get("id") or hashed), split, _plain(row))

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits.get(split, ())

    # --- episodes -------------------------------------------------------------------------------------------

    async def play(self, task: Task, seed: int, address: Address) -> Score:
        given, outcome = await self.runner.play(task, seed, address)
        scorer = self.runner.scorer_name
        values = given if isinstance(given, dict) else {SCORE: given}
        # A component may be called as what it is: the reward. As a metric beside others it would be lost.
        free = {REWARD} & self.reward_weights.keys()
        if taken := [name for name in values if name in MEASURED and name not in free]:
            raise AirError(
                f"{scorer} gave a score called {taken[0]!r}, which every episode's metrics have already.",
                f"call it otherwise: my_{taken[0]}.",
            )
        if lacking := [name for name in self.reward_weights if name not in values]:
            raise AirError(
                f"{scorer} gave {', '.join(values) or 'no score'}, and rewards weigh {', '.join(lacking)}.",
                "rewards = { " + ", ".join(f"{name} = 1.0" for name in values) + " } in [[orchestrator.env]].",
            )
        rewards = {name: values[name] for name in self.reward_weights}
        return replace(outcome, rewards=rewards, metrics={**outcome.metrics, **values})

    # --- the runner --------------------------------------------------------------------------------------

    def lacks(self) -> Sequence[MissingRequirement]:
        return self.runner.lacks()

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        return await self.runner.check_sandbox()

    def check_answers(self) -> Iterator[TaskProblem]:
        """A command's sandbox holds the row, and the agent may read it."""
        if not self.args.command:
            return
        columns = {name for task in self.tasks("train") for name in task.payload} - set(self.args.hidden)
        if found := sorted(name for name in columns if name.lower() in ANSWERS):
            yield TaskProblem(
                "warn",
                f"{self.name}: agents are told the column{'s' * (len(found) > 1)} {', '.join(found)} of their row",
                "what is right may stand there, and whatever runs in the sandbox can read it",
                f"args = {{ hidden = {json.dumps(found)} }}: then only the scorer is told.",
                id="D16",
            )

    def abandon(self) -> None:
        self.runner.abandon()

    async def close(self) -> None:
        await self.runner.close()


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """As JSON has it: agents are told it so, and so it is kept. Dates, as Parquet has them, are texts."""
    try:
        json.dumps(row)
    except TypeError:
        row = json.loads(json.dumps(row, ensure_ascii=False, default=str))
    return row


def by_hash(rows: Sequence[Row], but: Collection[str] = ()) -> dict[str, Row]:
    """Rows by a hash of their content, so that a repeated row is one task; `but`: columns with only the row's
    position."""
    compared = [{name: value for name, value in row.items() if name not in but} for row in rows]
    texts = [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in compared]
    return {hashlib.sha256(text.encode()).hexdigest()[:10]: row for text, row in zip(texts, rows, strict=True)}
