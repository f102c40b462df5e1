"""What training made of an episode: its line in tokens/step_0012.jsonl, and what its fate means."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airloop.runs.damaged import number, table
from airloop_view.folder import LARGEST_FILE, Folder
from airloop_view.weight import is_light

MOST_LINES = 200_000  # of a step: each has an episode
NUMBERS = b', "logprobs": ['  # from here on a line holds numbers of every token


class Records:
    """Those of one step. A step's file holds every token's numbers and may have a gigabyte, so it is gone through line
    by line, an episode's line is found by its bytes, and only what is asked for is parsed."""

    def __init__(self, folder: Folder, run: Path, source: str) -> None:
        self._folder = folder
        self._path = run / "tokens" / f"{source}.jsonl"

    def of(self, id: str) -> dict[str, Any] | None:
        named = json.dumps(id).encode()
        return next((line for data in self._lines() if named in data and (line := _parsed(data)).get("id") == id), None)

    def heads(self) -> Iterator[dict[str, Any]]:
        """All of them, without the numbers of tokens. As a run writes a line these come last, so the cut is safe: in
        JSON no text can hold an unescaped `"logprobs": [`."""
        for data in self._lines():
            cut = data.find(NUMBERS)
            head = _parsed(data[:cut] + b"}") if cut > 0 else {}
            yield head if "fate" in head else _parsed(data)

    def rewards(self, ids: set[str]) -> dict[str, dict[str, Any]]:
        """Those of these episodes; nothing else of a line is kept."""
        found = ((line.get("id"), line.get("rewards")) for line in self.heads())
        return {id: rewards for id, rewards in found if isinstance(id, str) and id in ids and isinstance(rewards, dict)}

    def _lines(self) -> Iterator[bytes]:
        """Whole ones: the last may still be being written."""
        try:
            with self._folder.open(self._path) as file:
                for _ in itertools.repeat(None, MOST_LINES):
                    if not (line := file.readline(LARGEST_FILE)).endswith(b"\n"):
                        return
                    yield line
        except OSError:
            return


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return table(json.loads(line)) if is_light(line) else {}
    except (ValueError, RecursionError):
        return {}


def why(record: dict[str, Any] | None, source: str, ending: str, members: int) -> str:
    """One sentence about what became of an episode in training."""
    if source.startswith("refused_"):
        return (
            "Refused with its step, for which refused.jsonl has the reason: nothing of it counts, the step came anew."
        )
    if source.startswith("aside_"):
        return "Set aside when the run was resumed, and sampled anew: nothing of it is trained on."
    if record is None:
        if source.startswith("step_"):
            return "The step's update has not been made yet, or the run ended before it."
        return "Held out: nothing of it is trained on."
    match record.get("fate"):
        case "trained":
            advantage = number(record.get("advantage")) or 0.0
            better = "better" if advantage > 0 else "worse" if advantage < 0 else "as good"
            than = "as" if advantage == 0 else "than"
            text = f"Trained with advantage {advantage:+.3g}: it scored {better} {than} the mean of its group."
            lost = {name: count for name, count in table(record.get("tokens")).items() if name != "trained"}
            if lost:
                text += " Not trained of it: " + ", ".join(f"{n} tokens {k.replace('_', ' ')}" for k, n in lost.items())
            return text
        case "zero advantage":
            return f"Not trained on: all {members} of its group scored the same, so there is nothing to learn from it."
        case "no_signal":
            return f"Not trained on: all {members} of its group scored the same, and difficulty filtering left it out."
        case "infra_error" if ending == "infra_error":
            return "Not trained on: the machinery spoilt it, which is never a reward."
        case "infra_error":
            return "Not trained on: the machinery spoilt others of its group, and too few were left to compare."
        case fate:
            return f"Its fate in training: {fate}."
