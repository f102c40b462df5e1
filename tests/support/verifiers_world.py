"""Environments of verifiers, in that library's own environments, and a model that knows what to say."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.endpoint_world import Recorded, trained_rows
from support.interop_world import ENVIRONMENTS, PROGRAMS, ROOT, interpreter
from support.rollout_world import ScriptedEngine, chat_tokenizer

from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.types import Trajectory
from airloop.verifiers.env import VerifiersEnv

OURS = ROOT / "tests" / "interop" / "environments"
SPLITS = ("train", "eval", "test")
HERE = {"type": "subprocess"}
NULL = {"agent": {"harness": {"id": "null"}}}  # v1's loop of messages and tools, without a shell
CHAT = {"agent": {"harness": {"id": "air_chat"}, "runtime": HERE}}  # the same, without a program


def opened(version: str, environment: str | Path, **args: Any) -> VerifiersEnv:
    """`version`: "v0" or "v1". One that was opened before is used again: to load the library takes seconds."""
    return _opened(version, str(environment), json.dumps(args, sort_keys=True))


@functools.cache
def _opened(version: str, environment: str, args: str) -> VerifiersEnv:
    given = {"python": interpreter(f"verifiers-{version}"), **json.loads(args)}
    env = load_environment(f"verifiers:{environment}", given)
    assert isinstance(env, VerifiersEnv)
    atexit.register(env.abandon)
    return env


def theirs(name: str) -> Path:
    """An example of the library's own source distribution."""
    interpreter("verifiers-v1")
    (found,) = (ENVIRONMENTS / "verifiers-v1" / "source").glob(f"verifiers-*/tests/v1/fixtures/{name}.py")
    return found


def play(env: VerifiersEnv, speak: Callable[[str, int], str]) -> list[Trajectory]:
    return play_all({env.name: env}, speak)


def play_all(envs: Mapping[str, VerifiersEnv], speak: Callable[[str, int], str]) -> list[Trajectory]:
    """An episode of each task, all at the same time. What is trained of it is what was sampled, to the byte."""
    chat = chat_tokenizer()
    engine, saved = Recorded(speak, tokenizer=chat), list[Trajectory]()
    settings = RolloutSettings(Sampling(max_tokens=400), 1, retries=0, deadline_s=600)
    sampler = Sampler(engine, chat, dict(envs), settings, lambda trajectory, _: saved.append(trajectory))
    tasks = [replace(task, env=name) for name, env in envs.items() for split in SPLITS for task in env.tasks(split)]
    asyncio.run(sampler.evaluate(tasks))
    assert trained_rows(*saved) == sorted(engine.pairs), "a trained row is no request and its response"
    return sorted(saved, key=lambda trajectory: trajectory.task.id)


def alone(
    folder: Path,
    version: str,
    file: str,
    args: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    speak: Callable[[str, int], str],
) -> list[dict[str, float]]:
    """What the library by itself makes of the same rows: an agent's program that uses nothing of ours."""
    told = {"folder": str(OURS), "name": file.removesuffix(".py"), "args": dict(args)}
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({**told, "row": row}) for row in rows))
    given = {"tasks": str(folder / "rows.jsonl"), "python": interpreter(f"verifiers-{version}"), "success": "none"}
    env = load_environment(f"{PROGRAMS / 'verifiers_alone.py'}:solve_{version}", given)
    env.weigh({"whole": 1.0})
    chat, saved = chat_tokenizer(), list[Trajectory]()
    settings = RolloutSettings(Sampling(max_tokens=400), 1, retries=0, deadline_s=600)
    engine = ScriptedEngine(chat, speak)
    sampler = Sampler(engine, chat, {env.name: env}, settings, lambda trajectory, _: saved.append(trajectory))
    try:
        asyncio.run(sampler.evaluate([task for split in SPLITS for task in env.tasks(split)]))
    finally:
        env.abandon()
    assert all("whole" in t.metrics for t in saved), [(t.ending, t.error) for t in saved]
    known = [name for name in saved[0].metrics if name in ("whole", "correct", "brief", "letters", "num_turns")]
    by_row = {json.dumps(t.task.payload["row"]): {name: t.metrics[name] for name in known} for t in saved}
    return [by_row[json.dumps(row)] for row in rows]
