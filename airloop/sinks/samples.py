"""A few episodes of a step, as text that a table can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.files import read_lines, read_object
from airloop.success import METRIC

# Signs of one conversation that are kept, from both ends: its task, and how it ended.
CHARACTERS = 8000


@dataclass(frozen=True)
class Sample:
    step: int  # counted from 1, as everywhere a person looks
    id: str
    task: str
    ending: str
    success: float | None
    reward: float
    advantage: float | None
    fate: str
    turns: int
    conversation: str


def step_samples(run: Path, step: int, count: int) -> list[Sample]:
    """Spread evenly over the step's rewards, the worst and the best among them: what a mean is made of."""
    made = [line for line in read_lines(run / "tokens" / f"step_{step:04d}.jsonl") if "reward" in line]
    made.sort(key=lambda line: (line["reward"], line["id"]))
    return [_sample(run, step, made[i]) for i in _spread(len(made), count)]


def _spread(total: int, count: int) -> list[int]:
    count = min(total, count)
    if count < 2:
        return [total // 2][:count]
    return [i * (total - 1) // (count - 1) for i in range(count)]


def _sample(run: Path, step: int, made: Mapping[str, Any]) -> Sample:
    path = run / "trajectories" / f"step_{step:04d}" / f"{made['id']}.json"
    episode = read_object(path)
    return Sample(
        step=step + 1,
        id=made["id"],
        task=episode["task"]["id"],
        ending=episode["ending"],
        success=episode.get("metrics", {}).get(METRIC),
        reward=float(made["reward"]),
        advantage=made.get("advantage"),
        fate=made["fate"],
        turns=len(episode["turns"]),
        conversation=_shortened(_conversation(episode["turns"])),
    )


def _conversation(turns: list[dict[str, Any]]) -> str:
    said = [message for turn in turns for message in (*turn["shown"], turn["reply"])]
    said += [{"role": "environment", "content": o.get("text", "")} for turn in turns[-1:] for o in turn["observations"]]
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in said)


def _shortened(text: str) -> str:
    half = CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n… {left_out} characters …\n{text[-half:]}" if left_out > 0 else text
