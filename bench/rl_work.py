"""The work of one RL step, which every side of bench/rl_step.py is given."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What one step asks for. Every reply has `new` tokens, every answer of a tool `observation`."""

    tasks: int
    group: int
    prompt: int
    turns: int
    new: int
    observation: int
    tool_s: float
    vocabulary: int

    @property
    def episodes(self) -> int:
        return self.tasks * self.group

    @property
    def length(self) -> int:
        return self.prompt + self.turns * self.new + (self.turns - 1) * self.observation

    def tokens(self, count: int, *seed: int) -> list[int]:
        rng = random.Random(str(seed))
        return [rng.randrange(2, self.vocabulary) for _ in range(count)]

    def start(self, episode: int, step: int) -> list[int]:
        return self.tokens(self.prompt, step, episode // self.group)

    def answer(self, episode: int, step: int, turn: int) -> list[int]:
        return self.tokens(self.observation, step, episode, turn)
