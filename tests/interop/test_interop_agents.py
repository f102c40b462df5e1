"""Agents of other libraries, unchanged: LangGraph, OpenAI's Agents SDK, smolagents, Anthropic's client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.interop_world import asked_for, both_at_once, call, one_by_one, play, results

pytestmark = pytest.mark.interop


def with_final_answer(prompt: str, seed: int) -> str:
    """smolagents' agents answer by a tool, and show the results of others as a user's words."""
    known = [int(found) for found in re.findall(r"Observation:\n(\d+)", prompt)]
    if len(known) == 2:
        return call("final_answer", answer=str(sum(known)))
    return call("look_up", key=asked_for(prompt)[len(known)])


def in_code(prompt: str, seed: int) -> str:
    """First one thing, to see it; then the rest, which uses what the first step has left."""
    a, b = asked_for(prompt)
    if "<|im_start|>assistant" in prompt.removesuffix("<|im_start|>assistant\n"):
        return f"Thought: now the rest.\n<code>\nfinal_answer(first + look_up('{b}'))\n</code>"
    return f"Thought: I look.\n<code>\nfirst = look_up('{a}')\nprint(first)\n</code>"


def by_a_helper(prompt: str, seed: int) -> str:
    if "Ask the keeper." not in prompt:
        return one_by_one(prompt, seed)
    known = results(prompt)
    a, b = asked_for(prompt)
    asked = f"How many {a} and {b} are there?"
    return str(known[0]) if known else call("ask_keeper", input=asked)


@pytest.mark.parametrize(
    ("library", "program", "speak", "turns", "conversations"),
    [
        ("langgraph", "react_agent.py:solve", one_by_one, 3, 1),
        ("langgraph", "react_agent.py:solve_async", both_at_once, 2, 1),
        ("langgraph", "react_agent.py:solve_stream", one_by_one, 3, 1),
        ("langgraph", "react_agent.py:solve_responses", one_by_one, 3, 1),
        ("langgraph", "react_agent.py:solve_graph", both_at_once, 2, 1),
        ("openai-agents", "agents_sdk.py:solve", one_by_one, 3, 1),
        ("openai-agents", "agents_sdk.py:solve_sync", both_at_once, 2, 1),
        ("openai-agents", "agents_sdk.py:solve_chat", one_by_one, 3, 1),
        ("openai-agents", "agents_sdk.py:solve_chat_by_default", one_by_one, 3, 1),
        ("openai-agents", "agents_sdk.py:solve_stream", one_by_one, 3, 1),
        ("openai-agents", "agents_sdk.py:solve_chat_stream", both_at_once, 2, 1),
        ("openai-agents", "agents_sdk.py:solve_with_helper", by_a_helper, 5, 2),
        ("anthropic", "claude_loop.py:solve", one_by_one, 3, 1),
        ("anthropic", "claude_loop.py:solve_async", both_at_once, 2, 1),
        ("anthropic", "claude_loop.py:solve_stream", one_by_one, 3, 1),
        ("anthropic", "claude_loop.py:solve_runner", both_at_once, 2, 1),
    ],
)
def test_episodes_of_agents(
    library: str,
    program: str,
    speak: Callable[[str, int], str],
    turns: int,
    conversations: int,
    tmp_path: Path,
) -> None:
    played = play(tmp_path, library, program, speak)
    assert [len(t.turns) for t in played] == [turns] * len(played)
    assert [t.metrics["conversations"] for t in played] == [conversations] * len(played)


@pytest.mark.parametrize(
    ("function", "speak", "turns", "stop"),
    [
        ("solve", with_final_answer, 3, ""),
        ("solve_stream", with_final_answer, 3, ""),
        ("solve_code", in_code, 2, "</code>"),
    ],
)
def test_agents_that_write_their_history_anew(
    function: str, speak: Callable[[str, int], str], turns: int, stop: str, tmp_path: Path
) -> None:
    """smolagents shows calls as text of its own: no reply comes back as it was said, and each is a line of its own."""
    played = play(tmp_path, "smolagents", f"smol.py:{function}", speak, stop=stop)
    assert [len(t.turns) for t in played] == [turns] * len(played)
    assert [t.metrics["conversations"] for t in played] == [turns] * len(played)
