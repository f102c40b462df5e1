"""The environment `arith`: add two small numbers in one reply. Tiny, for tests and first contact.
The user says "3+4=", the reply "7" earns the reward component "correct".
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from airloop.envs.base import ActionFormat, EnvArgs, Environment, Opening, Session
from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.types import Action, Agent, Message, Observation, Score, Task, Trajectory

SPLITS = ("train", "eval", "test")
WEAK = 0.5  # how often the weak script is right
SHARES = {"eval": 0.15, "test": 0.15}  # of the pairs; the rest is for training


class ArithArgs(EnvArgs):
    max_number: int = Field(default=9, ge=1, le=99, description="largest summand")
    split_by: Literal["pairs", "none"] = Field(
        default="pairs", description="pairs: no sum of one split is in another; none: every split has all"
    )
    demo_accuracy: float = Field(default=0.5, ge=0, le=1, description="how often the demonstrations are right")


def read_sum(reply: str) -> str | None:
    """The number that a reply begins with."""
    said = re.match(r"\s*(\d+)(?!\S)", reply, re.ASCII)
    return said[1] if said else None


class ArithSession(Session):
    def __init__(self, task: Task) -> None:
        self.task = task
        self.correct = 0.0

    async def begin(self) -> Opening:
        return Opening((Message(role="user", content=f"{self.task.payload['a']}+{self.task.payload['b']}="),))

    async def act(self, action: Action) -> Observation:
        said = read_sum(action.text)
        self.correct = float(said == str(self.task.payload["answer"]))
        return Observation("", done=True, failed=said is None)

    async def finish(self) -> Score:
        return Score({"correct": self.correct}, {"correct": self.correct})


class Adder:
    """Reads the question and adds, wrong with the given probability."""

    def __init__(self, accuracy: float, highest: int, rng: random.Random) -> None:
        self.accuracy = accuracy
        self.highest = highest
        self.rng = rng

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        answer = sum(int(number) for number in re.findall(r"\d+", messages[-1]["content"]))
        if self.rng.random() >= self.accuracy:
            answer = self.rng.choice([n for n in range(self.highest + 1) if n != answer])
        return Message(role="assistant", content=str(answer))


class ArithEnv(Environment[ArithArgs]):
    name: ClassVar[str] = "arith"
    action_format: ClassVar[ActionFormat] = "text"
    success: ClassVar[str | None] = "correct"
    reward_weights: Mapping[str, float] = {"correct": 1.0}

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(type(self).reward_weights)  # and no others, whatever a config weighs

    @property
    def max_turns(self) -> int:
        return 1

    def tasks(self, split: str) -> Sequence[Task]:
        """In an order that is the same always and mixes small and large numbers."""
        numbers = range(self.args.max_number + 1)
        chosen = [(a, b) for a in numbers for b in numbers if self.args.split_by == "none" or home(a, b) == split]
        return [
            Task(self.name, f"{a}+{b}", split, {"a": a, "b": b, "answer": a + b})
            for a, b in sorted(chosen, key=lambda pair: digest(*pair))
        ]

    def answer_of(self, trajectory: Trajectory) -> str | None:
        return read_sum(trajectory.turns[-1].reply["content"]) if trajectory.turns else None

    def open(self, task: Task, seed: int) -> ArithSession:
        return ArithSession(task)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        rng = random.Random(f"{task.id}/{seed}")
        match name:
            case "oracle":
                return Adder(1.0, 2 * self.args.max_number, rng)
            case "demo":
                return Adder(self.args.demo_accuracy, 2 * self.args.max_number, rng)
            case "weak":
                return Adder(WEAK, 2 * self.args.max_number, rng)
            case "noop":
                return Script("")
            case "cheat":  # says every number: one of them is right
                return Script(",".join(map(str, range(2 * self.args.max_number + 1))))
        known = "oracle, weak, demo, noop, cheat"
        raise AirError(f"Environment 'arith' has no scripted agent {name!r}.", f"known: {known}.")


def digest(a: int, b: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{a}+{b}".encode()).digest()[:8])


def home(a: int, b: int) -> str:
    """The split of a pair, the same for both orders; pairs with 0 are for training, so it has every digit."""
    place = digest(*sorted((a, b))) / 2**64
    if 0 in (a, b) or place >= sum(SHARES.values()):
        return "train"
    return "eval" if place < SHARES["eval"] else "test"
