"""An environment of a few lines that can be made to fail in the ways that alarms are for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airloop.assemble import Components
from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.errors import InfraError
from airloop.types import Action, Agent, Message, Observation, Score, Task


@dataclass(frozen=True)
class Talk:
    """How its episodes go. `score`: rewards and metrics from the task's number and the episode's seed."""

    score: Callable[[int, int], tuple[dict[str, float], dict[str, float]]]
    weights: Mapping[str, float] = field(default_factory=lambda: {"won": 1.0})
    turns: int = 1
    answer: str = "go on"
    done: bool = False  # with the first answer
    tool_s: float | Callable[[int], float] = 0.0  # of each answer, or by the episode's seed
    fails: Callable[[int], bool] = lambda seed: False
    tasks: int = 8
    family: Callable[[int], str] = lambda number: ""
    hear: Callable[[str], float] | None = None  # a reward for each reply, the component "said"


class TalkSession(Session):
    def __init__(self, talk: Talk, task: Task, seed: int) -> None:
        self.talk, self.task, self.seed = talk, task, seed

    async def begin(self) -> Opening:
        return Opening((Message(role="user", content=f"{self.task.id}?"),))

    async def act(self, action: Action) -> Observation:
        tool_s = self.talk.tool_s
        await asyncio.sleep(tool_s(self.seed) if callable(tool_s) else tool_s)
        if self.talk.fails(self.seed):
            self.connect()
        said = {"said": self.talk.hear(action.text)} if self.talk.hear else {}
        return Observation(self.talk.answer, rewards=said, done=self.talk.done)

    def connect(self) -> None:
        raise InfraError("the tool server refused the connection")

    async def finish(self) -> Score:
        return Score(*self.talk.score(self.task.payload["number"], self.seed))


class TalkEnv(Environment):
    name: ClassVar[str] = "talk"
    action_format: ClassVar[ActionFormat] = "text"

    def __init__(self, talk: Talk) -> None:
        super().__init__(EnvArgs())
        self.talk = talk
        self.reward_weights = talk.weights

    @property
    def max_turns(self) -> int:
        return self.talk.turns

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("talk", f"t{i}", split, {"number": i}, self.talk.family(i)) for i in range(self.talk.tasks)]

    def open(self, task: Task, seed: int) -> TalkSession:
        return TalkSession(self.talk, task, seed)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        raise NotImplementedError


def talking(talk: Talk) -> Callable[[Components], Any]:
    """Puts it in the place of a run's environment."""

    def tamper(parts: Components) -> None:
        parts.envs["arith"] = TalkEnv(talk)

    return tamper
