"""Agents written for other libraries, in those libraries' own environments, and a model that knows what to say."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.endpoint_world import Recorded, trained_rows
from support.rollout_world import chat_tokenizer

from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.models.chat import ChatTokenizer
from airloop.programs.env import ProgramEnv
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.types import Trajectory

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "interop" / "programs"
ENVIRONMENTS = ROOT / ".venv-interop"
ROWS = [
    {"question": f"How many {a} and {b} are there together?", "stock": {a: m, b: n}, "answer": m + n}
    for a, m, b, n in (("apples", 3, "pears", 4), ("nuts", 20, "figs", 5), ("beans", 7, "plums", 31))
]


def interpreter(name: str) -> str:
    """Of a library's environment; where it could not be made, the test is skipped and says why."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        failed = ENVIRONMENTS / f"{name}.failed"
        why = failed.read_text() if failed.exists() else "`make test-interop` has not made its environment"
        pytest.skip(f"{name}: {why}")
    return str(python)


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def asked_for(prompt: str) -> list[str]:
    """The things in a row's question."""
    return list(re.findall(r"How many (\w+) and (\w+) are", prompt)[0])


def results(prompt: str) -> list[int]:
    found = re.findall(r"<tool_response>(.*?)</tool_response>", prompt, re.DOTALL)
    return [int(re.findall(r"\d+", text)[-1]) for text in found]


def one_by_one(prompt: str, seed: int) -> str:
    """Looks one thing up, then the other, then answers."""
    known = results(prompt)
    return str(sum(known)) if len(known) == 2 else call("look_up", key=asked_for(prompt)[len(known)])


def both_at_once(prompt: str, seed: int) -> str:
    """With something said before the calls, as models do."""
    known = results(prompt)
    calls = [call("look_up", key=key) for key in asked_for(prompt)]
    return str(sum(known)) if known else "\n".join(["I look them up.", *calls])


def until(chat: ChatTokenizer, token_ids: list[int], stop: str) -> list[int]:
    """Up to the token that completes a text which the agent has asked to stop at; all of it where there is none."""
    ends = (end for end in range(1, len(token_ids) + 1) if stop and stop in chat.decode(token_ids[:end]))
    return token_ids[: next(ends, len(token_ids))]


def play(
    folder: Path, library: str, program: str, speak: Callable[[str, int], str], *, stop: str = ""
) -> list[Trajectory]:
    """An episode of each row, all at the same time. Every one is right, and what is trained of it is what was sampled,
    to the byte. `stop`: a text that the agent has replies end at."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    given = {"tasks": str(folder / "rows.jsonl"), "python": interpreter(library)}
    env = load_environment(str(PROGRAMS / program), given)
    assert isinstance(env, ProgramEnv)
    chat = chat_tokenizer()
    engine, saved = Recorded(speak, tokenizer=chat), list[Trajectory]()
    settings = RolloutSettings(Sampling(max_tokens=400), 1, retries=0, deadline_s=120)
    sampler = Sampler(engine, chat, {env.name: env}, settings, lambda trajectory, _: saved.append(trajectory))
    tasks = [task for split in ("train", "eval", "test") for task in env.tasks(split)]
    try:
        asyncio.run(sampler.evaluate(tasks))
    finally:
        env.abandon()
    ended = [(t.ending, t.error, t.reward) for t in saved]
    assert ended == [("done", "", 1.0)] * len(ROWS), f"{ended}; the first was:\n{_told(saved[0])}"
    sampled = [(sent, until(chat, came, stop)) for sent, came in engine.pairs]
    assert trained_rows(*saved) == sorted(sampled), "a trained row is no request and its response"
    return saved


def _told(played: Trajectory) -> str:
    """What was said in an episode, to see why it went wrong."""
    return "\n".join(f"[{m['role']}] {m['content']}" for conversation in played.conversations() for m in conversation)
