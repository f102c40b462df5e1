"""The same task as an environment of air's own: what the agent of LangGraph is shown and earns, without LangGraph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from airloop.envs.base import ActionFormat, Environment, Session
from airloop.envs.tools import ToolSession, tool
from airloop.programs.env import ScriptedModel
from airloop.types import Agent, Score, Task

EVAL = 6  # of the training rows


class KeptSession(ToolSession):
    def __init__(self, task: Task) -> None:
        self.row = task.payload
        self.said = ""

    def prompt(self) -> str:
        return str(self.row["question"])

    @tool
    def get(self, k: str) -> str:
        """What is kept under a letter."""
        return str(self.row["kept"].get(k, "nothing"))

    def answer(self, text: str) -> None:
        self.said = text

    async def finish(self) -> Score:
        score = float(self.said == self.row["answer"])
        return Score({"score": score}, {"score": score})


class Kept(Environment):
    name: ClassVar[str] = "kept"
    action_format: ClassVar[ActionFormat] = "tools"
    success: ClassVar[str | None] = "score"
    reward_weights: Mapping[str, float] = {"score": 1.0}

    @property
    def max_turns(self) -> int:
        return 3

    def tasks(self, split: str) -> Sequence[Task]:
        file = Path(__file__).with_name("test.jsonl" if split == "test" else "train.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = {"train": rows[EVAL:], "eval": rows[:EVAL], "test": rows}[split]
        return [Task(self.name, f"{row['question']}={row['answer']}", split, row) for row in rows]

    def open(self, task: Task, seed: int) -> Session:
        return KeptSession(task)

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        script = {"demo": "demo", "oracle": "right"}[name]
        return ScriptedModel(f"{Path(__file__).with_name('scripts.py')}:{script}", task, seed)
