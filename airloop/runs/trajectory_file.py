"""A trajectory as JSON: what a person reads first, tokens last, nothing lost on the way there and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from airloop.errors import AirError
from airloop.types import Action, Branch, Observation, Sampled, Task, Times, Trajectory, Turn

SCHEMA_VERSION = 2
# 1 had no `family` of a task and no `places` of a turn: both are empty there, which is what their absence means.
READABLE = (1, SCHEMA_VERSION)


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A dict of plain JSON values. The task's payload and the actions' arguments must be JSON already."""
    t = trajectory
    return {
        "schema_version": SCHEMA_VERSION,
        "id": t.id,
        "task": _task_to_json(t.task),
        "ending": t.ending,
        "error": t.error,
        "reward": _number(t.reward),
        "rewards": _numbers(t.rewards),
        "turn_rewards": [_numbers(rewards) for rewards in t.turn_rewards],
        "metrics": _numbers(t.metrics),
        "version": t.version,
        "seed": t.seed,
        "started": t.started,
        "seconds": t.seconds,
        **({"tools": [dict(tool) for tool in t.tools]} if t.tools else {}),
        "turns": [_turn_to_json(turn) for turn in t.turns],
        "sampled": [_sampled_to_json(turn.sampled) for turn in t.turns],
        "branches": [_branch_to_json(branch) for branch in t.branches],
    }


def from_json(data: Mapping[str, Any]) -> Trajectory:
    found = data.get("schema_version")
    if found not in READABLE:
        raise AirError(
            f"This trajectory has schema version {found!r}; this version of air reads {READABLE[0]} to {READABLE[-1]}.",
            "read it with the version of air that wrote it",
        )
    sampled = [_sampled_from_json(s) for s in data["sampled"]]
    return Trajectory(
        id=data["id"],
        task=Task(**data["task"]),
        seed=data["seed"],
        version=data["version"],
        turns=tuple(_turn_from_json(turn, s) for turn, s in zip(data["turns"], sampled, strict=True)),
        branches=tuple(_branch_from_json(branch) for branch in data["branches"]),
        ending=data["ending"],
        rewards=_floats(data["rewards"]),
        turn_rewards=tuple(_floats(rewards) for rewards in data["turn_rewards"]),
        metrics=_floats(data["metrics"]),
        reward=float(data["reward"]),
        started=data["started"],
        seconds=data["seconds"],
        error=data["error"],
        tools=tuple(data.get("tools", ())),
    )


def _task_to_json(task: Task) -> dict[str, Any]:
    return {
        "env": task.env,
        "id": task.id,
        "family": task.family,
        "split": task.split,
        "payload": dict(task.payload),
    }


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "shown": [dict(message) for message in turn.shown],
        **({"places": list(turn.places)} if turn.places else {}),
        "reply": dict(turn.reply),
        "actions": [_said(action) for action in turn.actions],
        "observations": [{**_said(seen), "rewards": _numbers(seen.rewards)} for seen in turn.observations],
        "times": {"queue": turn.times.queue, "model": turn.times.model, "tool": turn.times.tool},
    }


def _turn_from_json(data: Mapping[str, Any], sampled: Sampled | None) -> Turn:
    seen = [Observation(**{"text": "", **o, "rewards": _floats(o["rewards"])}) for o in data["observations"]]
    return Turn(
        shown=tuple(data["shown"]),
        reply=data["reply"],
        sampled=sampled,
        actions=tuple(Action(**action) for action in data["actions"]),
        observations=tuple(seen),
        times=Times(**data["times"]),
        places=tuple(data.get("places", ())),
    )


def _said(value: Action | Observation) -> dict[str, Any]:
    """The fields that say something; the others are empty, as they are by default."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in fields.items() if v}


def _sampled_to_json(sampled: Sampled | None) -> dict[str, Any] | None:
    if sampled is None:
        return None
    return {
        "version": sampled.version,
        "stop": sampled.stop,
        "token_ids": list(sampled.token_ids),
        "logprobs": [_number(x) for x in sampled.logprobs],
    }


def _sampled_from_json(data: Mapping[str, Any] | None) -> Sampled | None:
    if data is None:
        return None
    logprobs = tuple(float(x) for x in data["logprobs"])
    return Sampled(tuple(data["token_ids"]), logprobs, data["stop"], data["version"])


def _branch_to_json(branch: Branch) -> dict[str, Any]:
    """`train` and `turns` as [value, how often] runs; log-probs of trained tokens only (the others are 0)."""
    return {
        "tokens": list(branch.tokens),
        "train": _runs(branch.train),
        "turns": _runs(branch.turns),
        "logprobs": [_number(x) for x, trained in zip(branch.logprobs, branch.train, strict=True) if trained],
    }


def _branch_from_json(data: Mapping[str, Any]) -> Branch:
    train = [bool(value) for value, count in data["train"] for _ in range(count)]
    turns = [value for value, count in data["turns"] for _ in range(count)]
    given = iter(data["logprobs"])
    logprobs = tuple(float(next(given)) if trained else 0.0 for trained in train)
    return Branch(tuple(data["tokens"]), tuple(train), logprobs, tuple(turns))


def _runs(values: Sequence[int]) -> list[list[int]]:
    return [[int(value), len(list(same))] for value, same in groupby(values)]


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity; float() reads these words back."""
    return value if math.isfinite(value) else str(value)


def _numbers(values: Mapping[str, float]) -> dict[str, float | str]:
    return {name: _number(value) for name, value in values.items()}


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
