"""Episodes of air-agent, from before there was this trainer, in the form of ours: `titanic_pi12_20260206_031502.json`.

Each entry of its `trajectory` is a turn as a verifiers environment keeps it: the whole prompt that was sent and the
completion that came back, as lists of messages or as text. What the environment answered stands nowhere by itself: it
is what the next prompt has after the agent's last word.
"""

from __future__ import annotations

import re
from typing import Any

from airloop.runs.damaged import items, number, table, whole

# Task, then the policy's step or, in the first experiments, the row; then the second in which it was saved.
NAME = re.compile(r".+_(?:pi)?\d+_\d{8}_\d{6}\.json")
PRINTED = re.compile(r"(?:\w+\()?role='(\w+)'")
ENDINGS = {"submit": "done"}  # in our words; others are told as they are


def is_air_agent(data: dict[str, Any]) -> bool:
    steps = items(data.get("trajectory"))
    return bool(steps) and all("completion" in table(step) for step in steps)


def from_air_agent(data: dict[str, Any]) -> dict[str, Any]:
    steps = [table(step) for step in items(data["trajectory"])]
    prompts = [_messages(step.get("prompt"), "user") for step in steps]
    rewards = [number(step.get("reward")) for step in steps]
    info, earned = table(data.get("info")), [reward for reward in rewards if reward is not None]
    ending = str(info.get("exit_reason") or info.get("exit_status") or "")
    return {
        "schema_version": 1,
        "task": {
            "env": "mlgym",
            "id": str(data.get("task") or ""),
            "family": "",
            "split": "train",
            "payload": {name: data[name] for name in ("example_id", "timestamp") if name in data},
        },
        "ending": ENDINGS.get(ending, ending),
        "error": "",
        # It was saved before it was scored: most have none.
        "reward": sum(earned) if earned else None,
        "rewards": {},
        "turn_rewards": [{} if reward is None else {"reward": reward} for reward in rewards],
        "metrics": {k: v for k, v in table(data.get("metrics")).items() if number(v) is not None},
        "version": whole(data.get("policy_step")),
        "seed": None,
        "started": None,  # its timestamp is of the end
        "seconds": None,
        "turns": [_turn(step, place, prompts) for place, step in enumerate(steps)],
        "sampled": [],
        "branches": [],
    }


def _turn(step: dict[str, Any], place: int, prompts: list[list[dict[str, Any]]]) -> dict[str, Any]:
    answers = _since_the_reply(prompts[place + 1]) if place + 1 < len(prompts) else []
    said = [m for m in _messages(step.get("completion"), "assistant") if m.get("role") == "assistant"]
    texts = [m.get("content") for m in said]
    calls = [call for m in said for call in items(m.get("tool_calls"))]
    words = "\n".join(text for text in texts if isinstance(text, str))
    return {
        "shown": prompts[place] if place == 0 else [],
        "reply": {"role": "assistant", "content": words, **({"tool_calls": calls} if calls else {})},
        "actions": [],  # which command was taken from the reply was not kept
        "observations": [{"text": _text(message.get("content"))} for message in answers],
        "times": {},
    }


def _since_the_reply(prompt: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spoke = [place for place, message in enumerate(prompt) if message.get("role") == "assistant"]
    return prompt[spoke[-1] + 1 :] if spoke else prompt[-1:]


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Of a base model prompt and completion are plain text."""
    return [_message(message, role) for message in ([value] if isinstance(value, str) else items(value))]


def _message(value: Any, role: str) -> dict[str, Any]:
    """Objects that JSON could not hold were saved as Python prints them: then that is what there is to read."""
    if not isinstance(value, str):
        return table(value)
    printed = PRINTED.match(value)
    return {"role": printed[1] if printed else role, "content": value}


def _text(content: Any) -> str:
    if isinstance(content, list):  # parts of a message, as some APIs have them
        return "\n".join(str(table(part).get("text") or "") for part in content)
    return "" if content is None else str(content)
