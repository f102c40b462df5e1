"""One who makes no model and asks: it flips an answer, validates, and keeps the flip if the score has risen."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.types import Message
from airloop_envs.mlgym.researchers.work import read_score, say
from airloop_envs.mlgym.spec import Yardstick

OTHER: Mapping[str, str] = {  # another answer, in awk
    "titanic": "1 - $2",
    "regressionKaggleHousePrice": "$2 * 1.15",
    "imageClassificationFMnist": "($2 + 1) % 10",
}
ROWS = 400  # of a table that it looks at: all have more


class Prober:
    def __init__(self, key: str, yardstick: Yardstick, rng: random.Random, max_turns: int) -> None:
        self.other = OTHER[key]
        self.yardstick = yardstick
        self.rows = rng.sample(range(2, ROWS + 2), ROWS)
        self.turns_left = max_turns
        self.best = float("-inf")
        self.asked = False

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        self.turns_left -= 1
        keep = self._keep(messages[-1]["content"]) if self.asked else ""
        if self.turns_left <= 0 or not self.rows:
            return say("That is as good as it gets.", f"{keep}cp best.csv submission.csv; submit")
        if not self.asked:
            self.asked = True
            return say("I begin with the baseline.", "python baseline.py; cp submission.csv best.csv; validate")
        flip = f"awk -F, -v OFS=, 'NR == {self.rows.pop()} {{ $2 = {self.other} }} 1' best.csv > submission.csv"
        return say("Is this row better so?", f"{keep}{flip}; validate")

    def _keep(self, heard: str) -> str:
        score = read_score(heard, self.yardstick.metric)
        if score is None:
            return ""
        worth = score if self.yardstick.direction == "up" else -score
        better, self.best = worth > self.best, max(worth, self.best)
        return "cp submission.csv best.csv; " if better else ""
