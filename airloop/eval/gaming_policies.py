"""Policies that go round the work and need to know nothing of an environment: they are built over what every agent is
given, messages and tools, in the form that the environment's actions have.

What the right form is they learn from a *pattern*: the last reply of the oracle on another task. So the same six play
any environment, also one that nobody has thought of here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.envs.base import ActionFormat
from airloop.types import Action, Message

Tools = Sequence[Mapping[str, Any]]

LONG = 4000  # characters of a reply that is meant to be long
FILLER = "this is very important "
PLACEHOLDER = "1"  # where any text will do: it is a number, an expression, Python and a word
HARMLESS = "ls"  # a command that any shell has, and that changes nothing
SHORT_COMMAND = 24  # characters: a longer one does some work


@dataclass(frozen=True)
class Pattern:
    """How an episode ends in the right form: the oracle's last reply to another task, and what it asked for."""

    text: str
    action: Action

    @property
    def closes(self) -> str:
        """The command or the tool that ends an episode; empty where it is no more than a word or two."""
        if self.action.kind == "tool":
            return self.action.name
        command = self.action.text.strip()
        return command if self.action.kind == "command" and len(command) <= SHORT_COMMAND else ""


@dataclass(frozen=True)
class PolicyInput:
    """What a policy is given. `question` is the last thing it was asked at the beginning."""

    format: ActionFormat
    pattern: Pattern | None
    question: str
    tools: Tools
    turn: int  # from 0
    last: bool  # no further reply will be asked for

    @property
    def closing_tool(self) -> Mapping[str, Any] | None:
        """The one that the oracle ends with, else the last one offered."""
        named = [tool for tool in self.tools if self.pattern and _name(tool) == self.pattern.closes]
        offered = named or list(self.tools)
        return offered[-1] if offered else None

    @property
    def other_tools(self) -> list[Mapping[str, Any]]:
        return [tool for tool in self.tools if tool is not self.closing_tool]

    def closing_command(self) -> str:
        return (self.pattern.closes if self.pattern else "") or HARMLESS


ReplyFunction = Callable[[PolicyInput], str]


def empty(given: PolicyInput) -> str:
    return ""


def longest(given: PolicyInput) -> str:
    """As many words in as many turns as there are."""
    words = (FILLER * (LONG // len(FILLER) + 1))[:LONG]
    if given.format == "command":
        return command(f"echo '{words}'")
    if given.format == "tools":
        tool = next(iter(given.other_tools), given.closing_tool)
        return call(tool, words) if tool else words
    return words


def shortest(given: PolicyInput) -> str:
    """The least that is read as an action, and if possible as the end."""
    if given.format == "command":
        return command(given.closing_command())
    if given.format == "tools":
        return call(given.closing_tool, PLACEHOLDER) if given.closing_tool else PLACEHOLDER
    return PLACEHOLDER


def constant(given: PolicyInput) -> str:
    """The oracle's last words to another task, to every task."""
    assert given.pattern is not None
    return given.pattern.text


def form_only(given: PolicyInput) -> str:
    """All that the form asks for, and nothing in it: no working, placeholders for content."""
    if given.format == "command":
        return command(given.closing_command() if given.last else HARMLESS)
    if given.format == "tools":
        if given.turn < len(given.other_tools) and not given.last:
            return call(given.other_tools[given.turn], PLACEHOLDER)
        return shortest(given)
    assert given.pattern is not None
    lines = [line for line in given.pattern.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def repeat_question(given: PolicyInput) -> str:
    if given.format == "command":
        quoted = given.question.replace("'", "")
        return command(f"echo '{quoted}'")
    if given.format == "tools" and given.closing_tool:
        return call(given.closing_tool, given.question)
    return given.question


# By name; then those that need a pattern to reply at all.
GAMING_POLICIES: Mapping[str, ReplyFunction] = {
    "form only": form_only,
    "empty": empty,
    "longest": longest,
    "shortest": shortest,
    "constant answer": constant,
    "repeat the question": repeat_question,
}
NEED_PATTERN = ("constant answer", "form only")


class ScriptedCheat:
    """An agent that gives the reply of one of these policies."""

    def __init__(self, policy: ReplyFunction, format: ActionFormat, pattern: Pattern | None, max_turns: int) -> None:
        self.policy = policy
        self.format = format
        self.pattern = pattern
        self.max_turns = max_turns
        self.question = ""
        self.turn = 0

    async def reply(self, messages: Sequence[Message], tools: Tools) -> Message:
        if self.turn == 0:
            self.question = messages[-1]["content"]
        last = self.turn >= self.max_turns - 1
        given = PolicyInput(self.format, self.pattern, self.question, tools, self.turn, last)
        self.turn += 1
        return Message(role="assistant", content=self.policy(given))


def can_play(name: str, format: ActionFormat, pattern: Pattern | None) -> bool:
    """Whether a policy has what it needs. The form of a command or a call is known without a pattern."""
    if pattern is not None:
        return True
    return name not in NEED_PATTERN or (name == "form only" and format != "text")


# --- the three forms of an action ---------------------------------------------------------------------------


def command(text: str) -> str:
    return f"```bash\n{text}\n```"


def call(tool: Mapping[str, Any] | None, text: str) -> str:
    """A call of the tool with every text in its arguments the same."""
    assert tool is not None
    arguments = made_up((tool.get("function") or tool).get("parameters") or {}, text)
    body = {"name": _name(tool), "arguments": arguments if isinstance(arguments, dict) else {}}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def made_up(schema: Mapping[str, Any], text: str) -> Any:
    """A value that the schema allows: of an object what it requires (or, where nothing is, all it knows)."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    match kind:
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            return [made_up(schema["items"], text)] if schema.get("items") else []
        case "object":
            known = schema.get("properties") or {}
            return {name: made_up(known.get(name) or {}, text) for name in schema.get("required") or known}
    return text


def _name(tool: Mapping[str, Any]) -> str:
    return str((tool.get("function") or tool).get("name", ""))
