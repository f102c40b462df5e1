"""The data that flows through a run: plain, frozen, readable as JSON.

A Task becomes Messages, a reply is sampled as tokens (Sampled), parsed into Actions, answered by
Observations; the episode's Turns end in a Trajectory with a Score; trajectories of one task that
started under one policy version form a Group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Protocol, TypedDict

Ending = Literal["done", "max_turns", "context_full", "deadline", "infra_error"]
StopReason = Literal["stop", "length", "text"]  # text: one that the client named, and nothing behind it is kept


class Message(TypedDict):
    """A chat message as templates know it. `content` of a sampled reply is its decoded text, untouched."""

    role: str
    content: str
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Task:
    """What an episode is about. `payload` is the environment's own: a question
    and its answer, say.

        Task("arith", "17", "train", {"question": "3 + 4", "answer": 7})
    """

    env: str  # in a run: the name that its config gives the environment
    id: str
    split: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""  # of which this is an example: "titanic" of "titanic-3"; empty: the environment itself

    @property
    def curve(self) -> str:
        """The name its results are counted under, apart from those of other families."""
        return self.family or self.env


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
    """`shown` are the messages that are new or changed since the last turn, in their order; `places` says where
    each of them stands in the conversation as the agent saw it. Empty `places`: at its end, after the last
    reply, which is how it is unless the session's view() shapes the history. The conversation's last message is
    always among them, so that its length is known; see Trajectory.conversations()."""

    shown: tuple[Message, ...]
    reply: Message
    sampled: Sampled | None  # None for agents that are not the policy under training
    actions: tuple[Action, ...]
    observations: tuple[Observation, ...]
    times: Times = Times()
    places: tuple[int, ...] = ()


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
    """One episode, from its task to its score, with every token that was sampled in it."""

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
    tools: tuple[Mapping[str, Any], ...] = ()  # that the agent could call: part of what it was shown

    @property
    def sampled_tokens(self) -> int:
        return sum(sum(branch.train) for branch in self.branches)

    def conversations(self) -> Iterator[list[Message]]:
        """For each turn, all that the agent saw before its reply."""
        seen: list[Message] = []
        for turn in self.turns:
            if turn.places:
                changed = dict(zip(turn.places, turn.shown, strict=True))
                seen = [changed[i] if i in changed else seen[i] for i in range(turn.places[-1] + 1)]
            else:
                seen = [*seen, *turn.shown]
            yield seen
            seen = [*seen, turn.reply]


def shown_anew(before: Sequence[Message], now: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """`shown` and `places` of a turn: what of the conversation is not as it was at the end of the turn before."""
    grown = range(len(before), len(now))
    places = [i for i, message in enumerate(now) if i in grown or message != before[i]]
    if places == list(grown) and places:
        return tuple(now[len(before) :]), ()
    if places[-1:] != [len(now) - 1]:
        places.append(len(now) - 1)
    return tuple(now[i] for i in places), tuple(places)


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


# note: the run goes on. pause: the run stops after this step, with everything saved, and can be resumed when mended.
# stop: this update may be at fault, so the step is refused and the run ends; resumed, it is sampled anew.
Severity = Literal["note", "pause", "stop"]


@dataclass(frozen=True)
class Alarm:
    """Raised at a step, as it goes to the terminal, to alarms.jsonl in the run's directory and to every sink."""

    id: str  # of the failure catalogue
    name: str
    severity: Severity
    step: int
    seen: str  # with numbers
    why: str
    fix: str
