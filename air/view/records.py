"""What training made of an episode: its line in tokens/step_0012.jsonl, and what its fate means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from air.lab.damaged import number, table
from air.view.folder import Folder


class Records:
    """Those of one step. A step's file holds every token's numbers, so it is read once, an episode's line is found by
    its bytes, and only that is parsed."""

    def __init__(self, folder: Folder, run: Path, source: str) -> None:
        try:
            self._data = folder.read(run / "tokens" / f"{source}.jsonl")
        except OSError:
            self._data = b""

    def of(self, id: str) -> dict[str, Any] | None:
        named, at = json.dumps(id).encode(), -1
        while (at := self._data.find(named, at + 1)) >= 0:
            start, end = self._data.rfind(b"\n", 0, at) + 1, self._data.find(b"\n", at)
            try:
                line = json.loads(self._data[start : len(self._data) if end < 0 else end])
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and line.get("id") == id:
                return line
        return None


def why(record: dict[str, Any] | None, source: str, ending: str, members: int) -> str:
    """One sentence about what became of an episode in training."""
    if record is None:
        if source.startswith("step_"):
            return "The step's update has not been made yet, or the run ended before it."
        if source.startswith("aside_"):
            return "Set aside when the run was resumed, and sampled anew: nothing of it is trained on."
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
