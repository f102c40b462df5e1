from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.errors import AirError
from airloop.runs.trajectory_file import from_json, to_json
from airloop.types import Action, Branch, Message, Observation, Sampled, Task, Times, Trajectory, Turn

FLOATS = st.floats(allow_nan=False)
TEXT = st.text(max_size=8)
REWARDS = st.dictionaries(TEXT, FLOATS, max_size=2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=2)
MESSAGES = st.fixed_dictionaries({"role": TEXT, "content": TEXT}, optional={"name": TEXT, "tool_call_id": TEXT})
ACTIONS = st.builds(Action, st.sampled_from(["command", "tool", "text", "invalid"]), TEXT, TEXT, ARGUMENTS, TEXT)


@st.composite
def sampled(draw: Any) -> Sampled:
    ids = tuple(draw(st.lists(st.integers(0, 300), max_size=4)))
    logprobs = tuple(draw(st.lists(FLOATS, min_size=len(ids), max_size=len(ids))))
    return Sampled(ids, logprobs, draw(st.sampled_from(["stop", "length"])), draw(st.integers(0, 9)))


@st.composite
def branches(draw: Any) -> Branch:
    rows = draw(st.lists(st.tuples(st.integers(0, 300), st.booleans(), FLOATS, st.integers(-1, 3)), max_size=6))
    return Branch(
        tuple(r[0] for r in rows),
        tuple(r[1] for r in rows),
        tuple(r[2] if r[1] else 0.0 for r in rows),
        tuple(r[3] for r in rows),
    )


TURNS = st.builds(
    Turn,
    st.lists(MESSAGES, max_size=2).map(tuple),
    MESSAGES,
    st.none() | sampled(),
    st.lists(ACTIONS, max_size=2).map(tuple),
    st.lists(st.builds(Observation, TEXT, REWARDS, st.booleans(), st.booleans()), max_size=2).map(tuple),
    st.builds(Times, st.floats(0, 9), st.floats(0, 9), st.floats(0, 9)),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
)
TRAJECTORIES = st.builds(
    Trajectory,
    id=TEXT,
    task=st.builds(Task, TEXT, TEXT, TEXT, ARGUMENTS, TEXT),
    seed=st.integers(0, 2**31),
    version=st.integers(0, 9),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    branches=st.lists(branches(), max_size=2).map(tuple),
    ending=st.sampled_from(["done", "max_turns", "context_full", "deadline", "infra_error"]),
    rewards=REWARDS,
    turn_rewards=st.lists(REWARDS, max_size=2).map(tuple),
    metrics=REWARDS,
    reward=FLOATS,
    started=st.floats(0, 2e9),
    seconds=st.floats(0, 1e5),
    error=TEXT,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(TRAJECTORIES)
def test_nothing_is_lost_on_the_way_there_and_back(trajectory: Trajectory) -> None:
    text = json.dumps(to_json(trajectory), allow_nan=False)
    assert from_json(json.loads(text)) == trajectory


def example() -> Trajectory:
    message = Message(role="user", content="hello")
    turn = Turn((message,), message, None, (Action("command", "ls"),), (Observation("a"),))
    return Trajectory("x", Task("e", "t", "train"), 0, 0, (turn,), (), "done", {}, (), {"m": math.nan}, 0.0, 0.0, 1.0)


def test_text_comes_first_and_empty_fields_are_not_written() -> None:
    data = to_json(example())
    assert next(iter(data)) == "schema_version" and list(data)[-2:] == ["sampled", "branches"]
    assert data["turns"][0]["actions"] == [{"kind": "command", "text": "ls"}]
    assert data["metrics"] == {"m": "nan"} and math.isnan(from_json(data).metrics["m"])


def test_another_schema_is_refused() -> None:
    with pytest.raises(AirError, match="schema version 3; this version of air reads 1 to 2"):
        from_json({**to_json(example()), "schema_version": 3})


def test_files_of_schema_1_are_read() -> None:
    data = {**to_json(example()), "schema_version": 1, "metrics": {}}
    del data["task"]["family"]
    assert "places" not in data["turns"][0]
    assert from_json(data) == replace(example(), metrics={})
