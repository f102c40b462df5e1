"""Agents that need no model. The oracle and the demonstrations are the reference solution, said as a reply or
worked through with the tools; the weak one works too, and slips; the cheat says many numbers at once, in every form
that could be counted."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from airloop.envs.gsm8k.answers import MARK
from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.types import Agent, Task

WEAK = 0.5  # how often the weak script is right
HOW_MANY = 200  # numbers the cheat tries; half of the answers are among them


def text_agent(name: str, task: Task, seed: int) -> Agent:
    match name:
        case "oracle" | "demo":
            return Script(task.payload["solution"])
        case "weak":
            return Script(_with_a_slip(task, seed))
        case "noop":
            return Script("I do not know.")
        case "cheat":
            return Script(random.Random(f"{task.id}/{seed}").choice(_hedges()))
    raise unknown("gsm8k", name)


def calculator_agent(name: str, task: Task, seed: int, max_turns: int) -> Agent:
    match name:
        case "oracle" | "demo":
            return Script(*worked(task, max_turns))
        case "weak":
            return Script(*worked(task, max_turns, slip(task, seed)))
        case "noop":
            return Script("I do not know.")
        case "cheat":
            tries: list[dict[str, Any]] = [{"answer": hedge} for hedge in _hedges()]
            tries += [{"answer": list(range(HOW_MANY))}, {"answer": "task.payload"}]
            calls = [call("final_answer", arguments) for arguments in tries]
            return Script(call("calculator", {"expression": "__import__('os').environ"}), *calls)
    raise unknown("gsm8k-calculator", name)


def unknown(env: str, name: str) -> AirError:
    return AirError(f"Environment {env!r} has no scripted agent {name!r}.", "known: oracle, weak, demo, noop, cheat.")


def call(name: str, arguments: Mapping[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def slip(task: Task, seed: int) -> str:
    """The answer of one who works honestly: the right one, or one that is off."""
    rng = random.Random(f"{task.id}/{seed}/weak")
    right = task.payload["answer"]
    return right if rng.random() < WEAK else f"{right}{rng.randrange(10)}"


def _with_a_slip(task: Task, seed: int) -> str:
    """The working with that answer. Who has lost the thread has also forgotten the form."""
    said, right = slip(task, seed), task.payload["answer"]
    solution = task.payload["solution"].partition(MARK)[0].rstrip()
    return f"{solution}\n{MARK} {said}" if said == right else f"{solution}\nSo it must be about {said}, I think."


def worked(task: Task, max_turns: int, given: str = "") -> list[str]:
    """One calculation a turn; where there are more than turns, several in one. The answer is the last turn."""
    steps = [
        "\n".join(filter(None, (words, call("calculator", {"expression": expression}))))
        for words, expression in task.payload["expressions"]
    ]
    answer = call("final_answer", {"answer": given or task.payload["answer"]})
    turns = max(max_turns - 1, 1)
    size = max(1, -(-len(steps) // turns))
    replies = ["\n".join(steps[i : i + size]) for i in range(0, len(steps), size)]
    return [*replies, answer] if max_turns > 1 else ["\n".join([*replies, answer])]


def _hedges() -> list[str]:
    numbers = [str(n) for n in range(HOW_MANY)]
    return [
        ", ".join(numbers),
        "\n".join(numbers),
        f"{MARK} {' '.join(numbers)}",
        "\n".join(f"{MARK} {n}" for n in numbers),
        f"The answer is {' or '.join(numbers)}.",
        " ".join(f"The answer is {n}." for n in numbers),
        " ".join(f"\\boxed{{{n}}}" for n in numbers),
        "\\boxed{" + ", ".join(numbers) + "}",
    ]
