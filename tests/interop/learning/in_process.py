"""The same task as an environment of air's own: what the agent of LangGraph is shown and earns, without LangGraph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airloop.envs.base import Environment, Opening, Session
from airloop.programs.env import ScriptedModel
from airloop.serve.chat_form import read_reply
from airloop.types import Action, Agent, Message, Observation, Score, Task

GET: Mapping[str, Any] = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
EVAL = 6  # of the training rows


class KeptSession(Session):
    def __init__(self, task: Task) -> None:
        self.row = task.payload
        self.answer = ""

    async def begin(self) -> Opening:
        return Opening((Message(role="user", content=self.row["question"]),), (GET,))

    def view(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What a tool has found is told as a tool's words."""
        found = {i for i, message in enumerate(messages) if i and message["role"] == "user"}
        return [Message(role="tool", content=m["content"]) if i in found else m for i, m in enumerate(messages)]

    async def act(self, action: Action) -> Observation:
        said = read_reply(action.text, tools=True, parser="auto", cut=False, thinking=False)
        if said.calls:
            return Observation(self.row["kept"].get(said.calls[0].arguments.get("k"), "nothing"))
        self.answer = said.content.strip()
        return Observation("", done=True)

    async def finish(self) -> Score:
        score = float(self.answer == self.row["answer"])
        return Score({"score": score}, {"score": score})


class Kept(Environment):
    name: ClassVar[str] = "kept"
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
