"""An episode's file as a dict in air's own form, whatever wrote it: air, or MLGym or air-agent in their time.

Files may be half-written, of another version or hostile. `load` either returns a dict whose shape the rest of the
viewer may rely on, or raises Unreadable with a sentence; nothing in between.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from airloop.runs.damaged import items, number, table, whole
from airloop.runs.trajectory_file import READABLE
from airloop_view.air_agent import from_air_agent, is_air_agent
from airloop_view.traj import from_traj
from airloop_view.weight import HEAVIEST, LARGE, one_at_a_time, weight

SAMPLED = b'], "sampled": ['
ENDED = b"]}\n"
MOST_TURNS = 5_000  # that are shown: each costs a kilobyte, however little the file says of it


class Unreadable(Exception):
    """Why a file cannot be shown as an episode."""


def load(data: bytes, path: Path) -> dict[str, Any]:
    with one_at_a_time if len(data) > LARGE else contextlib.nullcontext():
        return _shaped(_parsed(data, path))


def load_head(data: bytes, path: Path) -> dict[str, Any]:
    """Without the tokens, which are most of a file and not needed for a list. A file as air writes it has them last
    and a line break only at its end, so the cut is safe: in JSON no text can hold an unescaped `"sampled": [`."""
    cut = data.rfind(SAMPLED)
    if cut > 0 and data.endswith(ENDED) and data.find(b"\n") == len(data) - 1:
        try:
            head = json.loads(_bearable(data[: cut + 1] + b"}"))
            if whole(table(head.get("metrics")).get("sampled_tokens")) is not None and "turns" in head:
                return _shaped(head)
        except (ValueError, RecursionError, Unreadable):
            pass
    return load(data, path)


def _bearable(data: bytes) -> bytes:
    if (needed := weight(data)) > HEAVIEST:
        raise Unreadable(f"To read this file would take up to {needed >> 20} MiB of memory: it is shown as it is.")
    return data


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    if not data.strip():
        raise Unreadable("The file is empty, or is still being written.")
    try:
        found = json.loads(_bearable(data).decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"This is not JSON, or only a part of it: {str(error)[:200]}.") from None
    if not isinstance(found, dict):
        raise Unreadable("This JSON is no episode: it is not an object.")
    if "schema_version" not in found and isinstance(found.get("trajectory"), list):
        return from_air_agent(found) if is_air_agent(found) else from_traj(found, path)
    if found.get("schema_version") not in READABLE:
        version = str(found.get("schema_version"))[:40]
        raise Unreadable(
            f"This is no episode of ours, or one of another version of air (schema version {version}; this one reads "
            f"{READABLE[0]} to {READABLE[-1]})."
        )
    return found


def _shaped(data: dict[str, Any]) -> dict[str, Any]:
    """Every part has its type; what has another one is left out."""
    task = table(data.get("task"))
    return {
        "task": {
            **{name: _text(task.get(name))[:1000] for name in ("env", "id", "family", "split")},
            "payload": table(task.get("payload")),
        },
        "ending": _text(data.get("ending")),
        "error": _text(data.get("error")),
        "reward": _float(data.get("reward")),
        "rewards": _floats(data.get("rewards")),
        "turn_rewards": [_floats(rewards) for rewards in items(data.get("turn_rewards"))[:MOST_TURNS]],
        "metrics": _floats(data.get("metrics")),
        "version": _small(data.get("version")),
        "seed": whole(data.get("seed")),
        "started": number(data.get("started")),
        "seconds": number(data.get("seconds")),
        "tools": _tables(data.get("tools")),
        "turns": [_turn(table(turn)) for turn in items(data.get("turns"))[:MOST_TURNS]],
        "sampled": [_sampled(s) for s in _tables(data.get("sampled"))],
        "branches": [_branch(b) for b in _tables(data.get("branches"))],
    }


def _tables(value: Any) -> list[dict[str, Any]]:
    """What else is in the list is left out: it would cost more here than it does in the file."""
    return [item for item in items(value) if isinstance(item, dict)]


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    places = items(turn.get("places"))
    return {
        "shown": [_message(m) for m in _tables(turn.get("shown"))],
        "places": [p for p in places if isinstance(p, int)] if places else [],
        "thought": turn.get("thought") if isinstance(turn.get("thought"), str) else None,
        "reply": _message(turn.get("reply"))["content"],
        "actions": [_action(a) for a in _tables(turn.get("actions"))],
        "observations": [_observation(o) for o in _tables(turn.get("observations"))],
        "times": {k: max(0.0, number(table(turn.get("times")).get(k)) or 0.0) for k in ("queue", "model", "tool")},
    }


def _message(value: Any) -> dict[str, str]:
    message = table(value)
    content = message.get("content")
    if not isinstance(content, str):  # parts of a message, as some APIs have them
        content = "" if content is None else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    if calls:
        content = "\n".join(part for part in (content, json.dumps(calls, ensure_ascii=False)) if part)
    return {"role": _text(message.get("role")), "content": content}


def _action(action: dict[str, Any]) -> dict[str, Any]:
    named = {name: _text(action.get(name)) for name in ("kind", "name", "text")}
    return {**named, "arguments": table(action.get("arguments"))}


def _observation(seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "text": _text(seen.get("text")),
        "rewards": _floats(seen.get("rewards")),
        "done": seen.get("done") is True,
        "failed": seen.get("failed") is True,
    }


def _sampled(sampled: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": _small(sampled.get("version")),
        "stop": _text(sampled.get("stop")),
        "tokens": len(items(sampled.get("token_ids"))),
    }


def _branch(branch: dict[str, Any]) -> dict[str, Any]:
    """Runs are expanded no further than there are tokens: a hostile file could ask for a billion."""
    tokens = [t if isinstance(t, int) else -1 for t in items(branch.get("tokens"))]
    return {
        "tokens": tokens,
        "train": [value == 1 for value in _expanded(branch.get("train"), len(tokens), 0)],
        "turns": _expanded(branch.get("turns"), len(tokens), -1),
        "logprobs": [_float(x) for x in items(branch.get("logprobs"))],
    }


def _expanded(runs: Any, length: int, otherwise: int) -> list[int]:
    found: list[int] = []
    for run in items(runs):
        value, count = [*items(run), 0, 0][:2]
        if isinstance(value, int) and isinstance(count, int):
            found += [int(value)] * max(0, min(count, length - len(found)))
    return found + [otherwise] * (length - len(found))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:1000]


def _float(value: Any) -> float | None:
    """Also the words that stand for numbers JSON has not ("nan", "inf"): shown as no number at all."""
    return number(value)


def _small(value: Any) -> int | None:
    """An integer that a database column holds."""
    found = whole(value)
    return found if found is not None and abs(found) < 1 << 62 else None


def _floats(value: Any) -> dict[str, float | None]:
    return {name: _float(v) for name, v in table(value).items()}
