"""What the agent is told: the rules, the task, and after every command where it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airloop.sandbox.base import HOME, WORKSPACE
from airloop.types import Message
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.commands import COMMANDS
from airloop_envs.mlgym.spec import TaskSpec

LONGEST_PATH = 160

FULL = """\
You are a machine-learning researcher at work in a Linux shell without a terminal. You have {turns} steps to reach the \
best score you can on the task you are given. What you submit is scored out of your reach.

Every reply is a short discussion of what you will do next, then exactly one command in a block:
```bash
ls -la
```
You see its output before your next reply. Working directory and variables last. Programs that wait for input do not \
work. A command may run {timeout:g} seconds, one that runs python {training:g} seconds. Besides bash you have:
{commands}
Write a file with a here-document:
```bash
cat << 'EOF' > train.py
print("hello")
EOF
```"""
SHORT = """\
You do machine-learning research in a shell. Reply with a short thought, then one command in a ```bash block. Write \
files with cat << 'EOF' > FILE. `validate` scores your work, `submit` ends."""


def opening(spec: TaskSpec, baseline: float, args: MlgymArgs) -> tuple[str, str]:
    """The system's and the user's first message."""
    task = re.sub(r"\n{3,}", "\n\n", spec.description.strip())
    metric = spec.yardstick.metric
    goal = "higher is better" if spec.yardstick.direction == "up" else "lower is better"
    if args.prompt == "short":
        return SHORT, f"{task}\nBaseline {metric}: {baseline:.4g}. You have {args.max_turns} steps."
    training = args.training_timeout_s or spec.training_timeout
    commands = "\n".join(f"- {signature}\n  {about}" for signature, about in COMMANDS)
    system = FULL.format(turns=args.max_turns, timeout=args.command_timeout_s, training=training, commands=commands)
    user = f"{task}\n\nBaseline: {metric} {baseline:.5g} ({goal}). You are in {WORKSPACE}."
    return system, user + status(args, 0, ("", WORKSPACE))


def status(args: MlgymArgs, step: int, state: tuple[str, str]) -> str:
    """The line after every observation: step, steps left, open file, directory."""
    file, directory = state
    file, directory = map(_short_path, (file, directory))
    left = args.max_turns - step
    if args.prompt == "short":
        where = f"; in {directory}" if directory != "~/workspace" else ""
        opened = f"; open: {file}" if file else ""
        return f"\n[{left} steps left{opened}{where}]"
    return f"\n[step {step}, {left} left; open file: {file or 'none'}; directory: {directory}]"


def _short_path(place: str) -> str:
    """Both are the agent's own variables, and may be anything."""
    place = " ".join((place.replace(HOME, "~", 1) if place.startswith(HOME) else place).split())
    return place if len(place) <= LONGEST_PATH else f"…{place[-LONGEST_PATH:]}"


def shorten(messages: Sequence[Message], keep: int) -> Sequence[Message]:
    """Earlier observations as a note; at least the last `keep` stay in full (0: all do).

    They are shortened in batches of `keep`, because each change makes the model read on from there anew.
    """
    places = [i for i, message in enumerate(messages) if message["role"] != "assistant" and i > 1]
    if keep == 0 or len(places) <= keep:
        return messages
    old = places[: (len(places) - keep) // keep * keep]
    shaped = list(messages)
    for place in old:
        text = messages[place]["content"]
        lines = text.count("\n") + 1
        if len(text) > 80:
            shaped[place] = Message(role=messages[place]["role"], content=f"[an earlier output of {lines} lines]")
    return shaped
