"""The data that flows through a run: plain, frozen, readable as JSON.

A Task becomes Messages, a reply is sampled as tokens (Sampled), parsed into Actions, answered by
Observations; the episode's Turns end in a Trajectory with a Score; trajectories of one task that
started under one policy version form a Group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Protocol, TypedDict

Ending = Literal["done", "max_turns", "context_full", "deadline", "infra_error"]
StopReason = Literal["stop", "length"]


class Message(TypedDict):
    """A chat message as templates know it. `content` of a sampled reply is its decoded text, untouched."""

    role: str
    content: str
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Task:
    env: str
    id: str
    split: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the agent asked for.

    kind "command": `text` is a shell-like command. "tool": `name` and `arguments` of a tool call.
    "text": the whole reply, for environments without actions. "invalid": nothing could be parsed and
    `text` is a sentence that teaches the right form; episodes show it to the agent and do not call act().
    """

    kind: Literal["command", "tool", "text", "invalid"]
    text: str = ""
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment answered to one action. `failed` says the command ended in an error."""

    text: str
    rewards: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """Named reward components for the whole episode, and metrics that are shown but never trained on."""

    rewards: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the engine returned: tokens exactly as sampled, each with its log-probability under the
    temperature-scaled, untruncated softmax, and the policy version that sampled it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: StopReason
    version: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: waiting for a place in the engine, in the model, in the environment."""

    queue: float = 0.0
    model: float = 0.0
    tool: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    shown: tuple[Message, ...]  # messages new since the last turn
    reply: Message
    sampled: Sampled | None  # None for agents that are not the policy under training
    actions: tuple[Action, ...]
    observations: tuple[Observation, ...]
    times: Times = Times()


@dataclass(frozen=True, slots=True)
class Branch:
    """A token sequence of an episode. The model sees every token; the loss counts those with `train`.

    `logprobs` are the sampler's, 0.0 where `train` is False. `turns` says which turn sampled a token (-1: none).
    """

    tokens: tuple[int, ...]
    train: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    id: str  # unique within a run: task, policy version, time, sample number
    task: Task
    seed: int
    version: int  # of the policy when the episode started
    turns: tuple[Turn, ...]
    branches: tuple[Branch, ...]
    ending: Ending
    rewards: Mapping[str, float]  # whole-episode components, unweighted
    turn_rewards: tuple[Mapping[str, float], ...]  # per turn, summed over the turn's observations
    metrics: Mapping[str, float]
    reward: float  # the weighted sum that training uses
    started: float  # seconds since the epoch
    seconds: float
    error: str = ""  # of an infra_error: what happened

    @property
    def sampled_tokens(self) -> int:
        return sum(sum(branch.train) for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one task that started under one policy version: the unit of the baseline."""

    task: Task
    version: int
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards(self) -> list[float]:
        return [t.reward for t in self.trajectories]

    @property
    def has_signal(self) -> bool:
        return len({round(r, 9) for r in self.rewards}) > 1


class Agent(Protocol):
    """Anything that answers: the policy, a model behind a URL, a script, a person. One per episode."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message: ...
