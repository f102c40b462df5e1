"""The environment `program`: episodes are played by a function of the user's own, which asks the policy."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from airloop import own_code
from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, code, existing
from airloop.envs.rows import Row, anchored_source
from airloop.envs.splits import read_with_test, share_out
from airloop.errors import AirError
from airloop.programs.workers import Workers
from airloop.rollout.program import Address, ProgramEnvironment
from airloop.types import Agent, Message, Score, Task

SCORE = "score"  # what a function's single number is called
SYSTEM = "system:"
P = TypeVar("P", bound="PlayedArgs")


class PlayedArgs(EnvArgs):
    """Of any environment whose episodes are played elsewhere."""

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
    def _known(self) -> PlayedArgs:
        if self.train not in ("all", "main") and not self.train.removeprefix(SYSTEM).strip():
            raise ValueError("train names no text after system:")
        if self.train not in ("all", "main") and not self.train.startswith(SYSTEM):
            raise ValueError(f'train = {self.train!r}: write "all", "main" or "system:TEXT"')
        return self


class ProgramArgs(PlayedArgs):
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


class ScriptedModel:
    """A function in the model's place: the program is the same."""

    def __init__(self, function: str, task: Task, seed: int) -> None:
        path = own_code.check_file(function, "script", "correct its path.")
        name = own_code.split_id(function)[2]
        found = getattr(own_code.load_module(path), name, None)
        if not callable(found):
            raise AirError(f"{path} has no function {name!r}.", "correct args = { scripts = … }.")
        self._function, self._task, self._random = found, dict(task.payload), random.Random(seed)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        asked = (self._task, list(messages), self._random)[: len(inspect.signature(self._function).parameters)]
        said = self._function(*asked)
        text = await said if inspect.isawaitable(said) else said
        if not isinstance(text, str):
            raise AirError(f"The script gave {text!r}, and must give a text.", "correct it.")
        return Message(role="assistant", content=text)


class PlayedEnv(ProgramEnvironment[P]):
    """What its arguments say of requests, of training and of scripts."""

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


class ProgramEnv(PlayedEnv[ProgramArgs]):
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
        named = self.function or self.args.function
        if not named:
            raise AirError(
                "The environment 'program' is not told which program.",
                'id = "./my_agent.py:solve", or args = { function = "./my_agent.py:solve" }.',
            )
        path = own_code.check_file(named, "program", "correct its path.")
        self.workers = Workers(path, own_code.split_id(named)[2], self.args.python)
        self.success = None if self.args.success == "none" else self.args.success  # type: ignore[misc]

    # --- tasks ----------------------------------------------------------------------------------------------

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        rows, test_rows = read_with_test(self.args.tasks, self.args.test_tasks)
        if not rows:
            raise AirError(f"The data set {self.args.tasks!r} has no rows.", "name another, or a longer slice.")
        splits = share_out(by_hash(rows), by_hash(test_rows), self.args.eval_share)
        made = {split: [self._task(*one, split) for one in found.items()] for split, found in splits.items()}
        ids = Counter(task.id for tasks in made.values() for task in tasks)
        if twice := [id for id, count in ids.items() if count > 1]:
            raise AirError(
                f"Of the tasks in {self.args.tasks!r} several have the id {twice[0]!r}.",
                "give each row an id of its own, or none.",
            )
        return made

    def _task(self, hashed: str, row: Mapping[str, Any], split: str) -> Task:
        return Task(self.name, str(row.get("id") or hashed), split, row)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits.get(split, ())

    # --- episodes -------------------------------------------------------------------------------------------

    async def play(self, task: Task, seed: int, address: Address) -> Score:
        given = await self.workers.run(dict(task.payload), {**address.variables(), "AIR_SEED": str(seed)})
        values = given if isinstance(given, dict) else {SCORE: given}
        if lacking := [name for name in self.reward_weights if name not in values]:
            raise AirError(
                f"The agent's function gave {', '.join(values) or 'no score'}, and rewards weigh {', '.join(lacking)}.",
                "rewards = { " + ", ".join(f"{name} = 1.0" for name in values) + " } in [[orchestrator.env]].",
            )
        return Score({name: values[name] for name in self.reward_weights}, values)

    def abandon(self) -> None:
        self.workers.close()


def by_hash(rows: Sequence[Row], but: Collection[str] = ()) -> dict[str, Row]:
    """The same row twice is one task; `but`: columns that only say where in the data set a row is."""
    told = [{name: value for name, value in row.items() if name not in but} for row in rows]
    texts = [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in told]
    return {hashlib.sha256(text.encode()).hexdigest()[:10]: row for text, row in zip(texts, rows, strict=True)}
