"""MLGym's own recordings, `.traj` files, in the form of air's episodes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.runs.damaged import items, number, table
from airloop_envs.mlgym.traj import Recording, read_recording


def from_traj(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """What the agent was first shown, then a turn for each step of `trajectory`."""
    recording = None
    with contextlib.suppress(AirError, OSError):
        recording = read_recording(path)
    scores = [step.scores for step in recording.steps] if recording else []
    turns, rewards = [], []
    opening = _opening(items(data.get("history")))
    for place, entry in enumerate(map(table, items(data.get("trajectory")))):
        earned = dict(scores[place] or {}) if place < len(scores) else {}
        rewards.append(earned)
        turns.append(_turn(entry, opening if place == 0 else [], earned))
    info = table(data.get("info"))
    final = _final(recording)
    seconds = [number(table(e).get("execution_time")) for e in items(data.get("trajectory"))]
    return {
        "schema_version": 1,
        "task": {"env": "mlgym", "id": _task(data, path), "family": "", "split": "", "payload": {}},
        "ending": str(info.get("exit_status") or ""),
        "error": "",
        "reward": next(iter(final.values())) if len(final) == 1 else None,
        "rewards": final,
        "turn_rewards": rewards,
        "metrics": {k: v for k, v in table(info.get("model_stats")).items() if number(v) is not None},
        "version": None,
        "seed": None,
        "started": None,
        "seconds": sum(s for s in seconds if s is not None) if any(s is not None for s in seconds) else None,
        "turns": turns,
        "sampled": [],
        "branches": [],
    }


def _turn(entry: dict[str, Any], shown: list[Any], earned: dict[str, float]) -> dict[str, Any]:
    action, response = _words(entry.get("action")), _words(entry.get("response"))
    thought = _words(entry.get("thought")).strip()
    return {
        "shown": shown,
        "thought": thought or None,
        "reply": {"role": "assistant", "content": response or "\n".join(p for p in (thought, action) if p)},
        "actions": [{"kind": "command", "text": action}] if action.strip() else [],
        "observations": [{"text": _words(entry.get("observation")), "rewards": earned}],
        "times": {"tool": number(entry.get("execution_time")) or 0.0},
    }


def _opening(history: list[Any]) -> list[Any]:
    """What was said before the agent's first word."""
    opening: list[Any] = []
    for message in map(table, history):
        if message.get("role") == "assistant" and not message.get("is_demo"):
            break
        opening.append({"role": _words(message.get("role")), "content": message.get("content")})
    return opening


def _final(recording: Recording | None) -> dict[str, float]:
    found = recording.final if recording else None
    if isinstance(found, float):
        return {"score": found}
    return dict(found or {})


def _task(data: dict[str, Any], path: Path) -> str:
    """`model__task__…` is how MLGym names a recording's directory."""
    said = data.get("environment")
    if isinstance(said, str) and said:
        return said
    parts = path.parent.name.split("__")
    return parts[1] if len(parts) > 2 else path.stem


def _words(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
