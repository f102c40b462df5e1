"""What training made of one step's episodes, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepRecord:
    metrics: dict[str, Any]  # a line of metrics.jsonl
    episodes: list[dict[str, Any]]  # the lines of tokens/step_0012.jsonl

    def text(self, fate: str | None = None) -> str:
        """`fate`: of all of them, in place of what it would have been."""
        lines = [line | {"fate": fate} if fate else line for line in self.episodes]
        return "".join(json.dumps(line) + "\n" for line in lines)
