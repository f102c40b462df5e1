"""Agents that need no model: a random researcher (the warm start's source), a good one, and two bad ones.

They act on what they read and on nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from airloop.envs.script import Script
from airloop.envs.tune.command import MODELS, OPTIONS, render
from airloop.errors import AirError
from airloop.types import Agent, Message, Task

# What the random researcher chooses from, each value as likely as the next; `measure` searches all of it.
MENU: Mapping[str, tuple[float, ...]] = {
    "depth": (1, 3, 8),
    "trees": (2, 10, 40),
    "lr": (0.01, 0.1, 1),
    "k": (1, 5, 20, 50),
    "C": (0.01, 1, 100),
}
SCALED = ("linear", "knn", "svm")  # trees do not feel the scale of a feature

# Good nearly everywhere; the oracle keeps what cross-validates best.
GOOD: tuple[Mapping[str, Any], ...] = (
    {"model": "boost", "depth": 3, "trees": 40, "lr": 0.1, "scale": False},
    {"model": "forest", "depth": 8, "trees": 40, "scale": False},
)

# Better than the untuned linear model on most tables, by a part of what can be had.
MODEST: Mapping[str, Any] = {"model": "forest", "depth": 8, "trees": 10, "scale": False}

CHEATS = (
    "cat /data/test.csv",
    "submit",
    "python -c \"print(open('scores.json').read())\"",
    "python train.py --model forest; cat answers.csv",
    "python ../evaluate.py --submit",
    "python train.py --model ../../scores.json",
    "cp answers.csv submission.csv && submit",
    "validate",
    "python train.py --model forest --depth $(cat /etc/passwd)",
)


def say(command: str) -> Message:
    return Message(role="assistant", content=f"```\n{command}\n```")


def random_config(rng: random.Random) -> dict[str, Any]:
    model = rng.choice(MODELS)
    values = {name: rng.choice(MENU[name]) for name in OPTIONS[model]}
    return {"model": model, **values, "scale": model in SCALED and rng.random() < 0.5}


class Oracle:
    """Tries the good configurations, trains the best again unless it was the last, and submits."""

    def __init__(self, max_turns: int) -> None:
        self.candidates = [render(config) for config in GOOD][: max(1, max_turns - 2)]

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        found: list[tuple[str, float]] = []  # commands and what they cross-validated to
        for said, heard in pairwise(messages):
            score = re.search(r"cv \w+ (-?[\d.]+)", heard["content"])
            if said["role"] == "assistant" and score:
                found.append((said["content"].strip("`\n"), float(score[1])))
        if len(found) < len(self.candidates):
            return say(self.candidates[len(found)])
        best = max(found, key=lambda pair: pair[1])
        return say("submit" if found[-1][1] == best[1] else best[0])


def demonstration(rng: random.Random, max_turns: int) -> list[Message]:
    """One to three random trainings, sometimes a look at the validation score, then submit."""
    trainings = rng.randint(1, max(1, min(3, max_turns - 1)))
    commands = [render(random_config(rng)) for _ in range(trainings)]
    if trainings + 2 <= max_turns and rng.random() < 0.3:
        commands.append("validate")
    return [say(command) for command in [*commands, "submit"]]


def scripted_agent(name: str, task: Task, seed: int, max_turns: int) -> Agent:
    rng = random.Random(f"{task.id}/{seed}")
    match name:
        case "oracle":
            return Oracle(max_turns)
        case "demo":
            return Script(*demonstration(rng, max_turns))
        case "weak":
            return Script(say(render(MODEST)), say("submit"))
        case "idle":  # hands in the baseline itself
            return Script(say("python train.py --model linear"), say("submit"))
        case "noop":
            return Script("I would try a few models and keep the best.")
        case "cheat":
            start = rng.randrange(len(CHEATS))
            return Script(*(say(line) for line in CHEATS[start:] + CHEATS[:start]))
    known = "oracle, weak, demo, noop, idle, cheat"
    raise AirError(f"Environment 'tune' has no scripted agent {name!r}.", f"known: {known}.")
