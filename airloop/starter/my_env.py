"""An environment in one file: say the larger of two digits. Replace tasks, messages and score by your own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.errors import AirError
from airloop.types import Action, Agent, Message, Observation, Score, Task


class MyArgs(EnvArgs):
    """What a config may set with `args = { … }`."""

    demo_accuracy: float = Field(default=0.4, ge=0, le=1, description="how often the demonstrations are right")


class MySession(Session):
    """One episode: what the agent is shown, what its replies do, what it is worth in the end."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.correct = 0.0

    async def begin(self) -> Opening:
        return Opening((Message(role="user", content=f"{self.task.payload['a']},{self.task.payload['b']}:"),))

    async def act(self, action: Action) -> Observation:
        said = action.text.strip()
        self.correct = float(said == str(self.task.payload["answer"]))
        return Observation("", done=True, failed=not said.isdigit())

    async def finish(self) -> Score:
        """Rewards, by component, and metrics."""
        return Score({"correct": self.correct}, {"correct": self.correct})


class Player:
    """A scripted agent: right with the given probability, or always the same reply."""

    def __init__(self, rng: random.Random, accuracy: float = 1.0, always: str | None = None) -> None:
        self.rng, self.accuracy, self.always = rng, accuracy, always

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        if self.always is not None:
            return Message(role="assistant", content=self.always)
        a, b = messages[-1]["content"].rstrip(":").split(",")
        right = self.rng.random() < self.accuracy
        return Message(role="assistant", content=max(a, b) if right else str(self.rng.randrange(10)))


class MyEnv(Environment[MyArgs]):
    name: ClassVar[str] = "my_env"
    action_format: ClassVar[ActionFormat] = "text"  # or "command", "tools"
    success: ClassVar[str | None] = "correct"  # shown before the reward
    reward_weights: Mapping[str, float] = {"correct": 1.0}

    @property
    def max_turns(self) -> int:
        return 1

    def tasks(self, split: str) -> Sequence[Task]:
        """Always the same and in the same order; no task of one split is in another."""
        pairs = [(a, b) for a in range(10) for b in range(10)]
        random.Random(0).shuffle(pairs)
        chosen = {"train": pairs[:60], "eval": pairs[60:80], "test": pairs[80:]}[split]
        return [Task(self.name, f"{a},{b}", split, {"a": a, "b": b, "answer": max(a, b)}) for a, b in chosen]

    def open(self, task: Task, seed: int) -> Session:
        return MySession(task)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        """The oracle shows what can be reached, the others that nothing is given for nothing."""
        rng = random.Random(f"{task.id}/{seed}")
        assert isinstance(self.args, MyArgs)
        match name:
            case "oracle":
                return Player(rng)
            case "demo":  # what the supervised start imitates
                return Player(rng, self.args.demo_accuracy)
            case "weak":  # honest work that succeeds sometimes: `air tasks audit` holds it above the two below
                return Player(rng, 0.5)
            case "noop":
                return Player(rng, always="")
            case "cheat":  # says every digit: one of them is right
                return Player(rng, always="0123456789")
        raise AirError(f"{self.name} has no scripted agent {name!r}.", "known: oracle, demo, weak, noop, cheat.")
