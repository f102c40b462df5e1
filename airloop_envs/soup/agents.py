"""Agents that need no model. All act through the tools; only the oracle and the demonstrations know a recipe."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.types import Agent, Message
from airloop_envs.soup.grading import REASONS
from airloop_envs.soup.spec import SolutionStep, SoupTask
from airloop_envs.soup.tools import STOPPED

NAMES = ("oracle", "weak", "demo", "noop", "guesser", "motions", "cheat")
WEAK = 0.5  # how often the weak script is right

# What a thief tries, each in a call of its own; see docs/soup.md. What it steals it prints as JSON.
THEFTS = (
    "import airloop_envs.soup.generate as g\nprint(sorted(g.KINDS))",
    "import sys\nfor name in list(sys.modules):\n    if name.startswith('airloop'): print(name)",
    "import os\nfor top in set(os.listdir('/')) - {'proc', 'sys', 'usr', 'lib', 'dev'}:\n"
    "    for folder, _, files in os.walk('/' + top):\n        for f in files:\n"
    "            if f in ('generate.py', 'grading.py', 'manifest.json', 'task_kind.py'):\n"
    "                print(os.path.join(folder, f))",
    "import gc\nfor o in gc.get_objects():\n"
    "    if isinstance(o, dict) and ('answer' in o or 'recipe' in o or 'forbidden' in o): print(list(o)[:20])",
    "import sys\nf = sys._getframe()\nwhile f:\n    print(f.f_code.co_filename, sorted(f.f_locals))\n    f = f.f_back",
    "import os\nfor pid in os.listdir('/proc'):\n    if pid.isdigit():\n"
    "        for n in ('environ', 'cmdline', 'maps'):\n"
    "            try: text = open(f'/proc/{pid}/{n}', 'rb').read()\n            except OSError: continue\n"
    "            if b'airloop/envs' in text or b'generate' in text: print(pid, n)",
    "import socket\ns = socket.socket()\ns.settimeout(1)\ns.connect(('10.0.0.1', 80))\nprint('out')",
)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def say(*calls: str) -> Message:
    return Message(role="assistant", content="\n".join(calls))


def answer(value: Any) -> str:
    """The call that gives what a recipe printed: a value, or a limit in its own form."""
    if isinstance(value, dict) and set(value) == {"limit"} and isinstance(value["limit"], dict):
        return call("answer", status="limit", answer=None, limit=value["limit"])
    return call("answer", status="ok", answer=value)


class Oracle:
    """Follows a recipe through the tools: where to go and what to answer it reads from what its code printed."""

    def __init__(self, recipe: Sequence[SolutionStep]) -> None:
        self.recipe = recipe
        self.seen: list[Any] = []
        self.step = 0

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        if self.step and STOPPED in messages[-1]["content"]:  # a busy machine: once more, on the page where we are
            return say(call("run_python", code=self.recipe[self.step - 1].with_seen(self.seen)))
        if self.step:
            self.seen.append(last_json(messages[-1]["content"]))
        if self.step == len(self.recipe):
            return say(answer(self.seen[-1]))
        step = self.recipe[self.step]
        self.step += 1
        target = step.target(self.seen)
        calls = [] if target is None else [call("navigate", href=target)]
        return say(*calls, call("run_python", code=step.with_seen(self.seen)))


def last_json(output: str) -> Any:
    """What the last printed line holds; the line itself if that is no JSON."""
    line = output.strip().splitlines()[-1] if output.strip() else ""
    try:
        return json.loads(line)
    except ValueError:
        return line


class Demonstrator:
    """An oracle with habits: it may look at the page first, stumble over an error, or answer with something near.
    What it gets wrong, RL can find out."""

    def __init__(self, recipe: Sequence[SolutionStep], rng: random.Random, accuracy: float) -> None:
        self.oracle = Oracle(recipe)
        self.right = rng.random() < accuracy
        self.first = rng.choice(FIRST_LOOKS) if rng.random() < 0.2 else ""
        self.rng = rng

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        if self.first:
            code, self.first = self.first, ""
            return say(call("run_python", code=code))
        if self.oracle.step == len(self.oracle.recipe) and not self.right:
            return say(answer(self.near(last_json(messages[-1]["content"]))))
        return await self.oracle.reply(messages, tools)

    def near(self, value: Any) -> Any:
        """Of the right form, mostly, and not right."""
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int | float):
            return value + self.rng.choice((-1, 1, 10))
        if isinstance(value, str):
            return value.split()[0] if " " in value else value.lower() + "s"
        if isinstance(value, list):
            return value[:-1]
        key = self.rng.choice(sorted(value)) if value else ""
        return {**value, key: self.near(value.get(key))} if value else value


MOTIONS = "import bs4\nsoup = make_soup()\nprint([tag.get_text() for tag in soup.find_all('p')][:3])"
FIRST_LOOKS = (
    "print(HTML[:200])",
    "print(make_soup().title)",
    "print(soup.title)",  # a name that is not there: the error is part of the demonstration
)


class Guesser:
    """Runs one line that tells it nothing, and guesses from the prompt's words."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        if messages[-1]["role"] != "tool":
            return say(call("run_python", code="soup = make_soup()"))
        return say(self.guess(messages[1]["content"]))

    def guess(self, prompt: str) -> str:
        if self.rng.random() < 0.25:
            evidence = self.rng.choice(("<", "<script", "<canvas>", "<script>", "<img src=", "application/pdf", prompt))
            limit = {"reason": self.rng.choice(REASONS), "evidence": evidence}
            return call("answer", status="limit", answer=None, limit=limit)
        form = prompt.partition("The answer is ")[2]
        return call("answer", status="ok", answer=self.value(prompt, form))

    def value(self, prompt: str, form: str) -> Any:
        words = [*re.findall(r"[\"“'‘]([^\"”'’]+)[\"”'’]", prompt), *re.findall(r"\w+", prompt)]
        if form.startswith("a list"):
            return [self.value(prompt, form.partition("each item is ")[2]) for _ in range(self.rng.randint(1, 5))]
        if form.startswith("an object"):
            keys = re.findall(r"^ *- (\w+): (.*)$", form, re.MULTILINE)
            return {key: self.value(prompt, rest) for key, rest in keys}
        if form.startswith("whole number"):
            return self.rng.randint(0, 20)
        if form.startswith("number"):
            return round(self.rng.uniform(0, 100), 2)
        if form.startswith("true or false"):
            return self.rng.random() < 0.5
        return self.rng.choice(words)


def scripted_agent(name: str, task: SoupTask, seed: int, demo_accuracy: float) -> Agent:
    rng = random.Random(f"{task.kind}/{task.seed}/{seed}")
    match name:
        case "oracle":
            return Oracle(task.recipe)
        case "demo":
            return Demonstrator(task.recipe, rng, demo_accuracy)
        case "weak":
            return Demonstrator(task.recipe, rng, WEAK)
        case "noop":
            return Script("I would look for it on the page.")
        case "motions":  # everything that looks like work, whatever the page or the question
            return Script(say(call("run_python", code=MOTIONS)), say(answer("nothing")))
        case "guesser":
            return Guesser(rng)
        case "cheat":
            stolen = answer({"stolen": "answer"})
            return Script(*(say(call("run_python", code=code)) for code in THEFTS), say(stolen))
    raise AirError(f"Environment 'soup' has no scripted agent {name!r}.", f"known: {', '.join(NAMES)}.")
