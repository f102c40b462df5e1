"""From a reply's text to what the agent asked for. Never fails: what cannot be read becomes an `invalid`
action whose text teaches the right form in one short sentence."""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from airloop.envs.base import ActionFormat
from airloop.errors import AirError
from airloop.files import is_deeper
from airloop.types import Action

# How tool calls are written. hermes: <tool_call>{…}</tool_call>. json: a JSON object or array, bare or
# fenced. auto: whichever the reply holds.
ToolParser = Literal["auto", "hermes", "json"]
PARSERS: tuple[str, ...] = get_args(ToolParser)

NO_COMMAND = "No command found. Write ```bash, then the command on its own line, then ```."
CUT_COMMAND = "Your reply was cut off before the command ended, so nothing ran. Write less."
CUT_THOUGHT = "Your reply was cut off while you were thinking, so nothing ran. Think less."
ONLY_THOUGHT = "Your reply is only a thought, so nothing ran. After </think>, write what is to be done."
NO_CALL = 'No tool call found. Write <tool_call>{"name": "…", "arguments": {…}}</tool_call>.'
CUT_CALL = "Your reply was cut off before the tool call ended, so nothing ran. Write less."

SHELLS = frozenset({"", "bash", "sh", "shell", "zsh", "console", "terminal", "cmd", "command"})
MAX_NAMED = 3  # commands named in a note
JSON_STARTS = 20  # places in a reply where JSON is looked for
DEEPEST = 64  # brackets in brackets, in the arguments of a call
TOO_DEEP = "nested too deeply"


def parse(
    text: str, format: ActionFormat, parser: str = "auto", *, cut: bool = False, thinking: bool = False
) -> tuple[list[Action], str]:
    """The actions of a reply, at least one, and a note for the agent (empty when there is nothing to say).

    `cut` says the reply ended by its length, not by the model's wish: a block left open is then not run. `thinking`
    says that the prompt itself has opened a thought, so that the reply begins inside it.
    """
    if parser not in PARSERS:
        raise AirError(f"There is no tool-call parser {parser!r}.", f"use one of: {', '.join(PARSERS)}")
    if format == "text":
        return [Action("text", text=text)], ""
    spoken = _after_thinking(text, thinking)
    if spoken is None:
        return [Action("invalid", text=CUT_THOUGHT if cut else ONLY_THOUGHT)], ""
    if format == "command":
        return _command(spoken, cut)
    # Llama 3 puts this token in front of a call where it has been told of an interpreter.
    spoken = spoken.lstrip().removeprefix("<|python_tag|>")
    hermes = parser == "hermes" or (parser == "auto" and "<tool_call>" in spoken)
    return _hermes(spoken, cut) if hermes else _bare_json(spoken, cut, only=parser == "json"), ""


def _after_thinking(text: str, thinking: bool) -> str | None:
    """What follows </think>: a command that was only considered must not run. None of a thought that never ends."""
    if "</think>" in text:
        return text.partition("</think>")[2]
    return None if thinking or text.lstrip().startswith("<think>") else text


# --- commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    language: str
    body: str
    closed: bool


_OPEN = re.compile(r"[ \t]*(`{3,})[ \t]*([^`\n]*?)[ \t]*\r?\n?")
_ONE_LINE = re.compile(r"[ \t]*`{3,}([^`\n]+)`{3,}[ \t]*\r?\n?")
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)([A-Za-z_]\w*)\2")


def _command(text: str, cut: bool) -> tuple[list[Action], str]:
    blocks = [block for block in _blocks(text) if block.body.strip()]
    ready = [block for block in blocks if block.closed or not cut]
    if not ready:
        return [Action("invalid", text=CUT_COMMAND if blocks or cut else NO_COMMAND)], ""
    # A block of another language is usually an illustration; it runs only if there is nothing else.
    first = next((block for block in ready if block.language in SHELLS), ready[0])
    others = [block.body for block in blocks if block is not first]
    return [Action("command", text=first.body)], _not_run(others)


def _not_run(bodies: list[str]) -> str:
    if not bodies:
        return ""
    named = [f"`{_short(body)}`" for body in bodies[:MAX_NAMED]]
    more = f" and {len(bodies) - MAX_NAMED} more" if len(bodies) > MAX_NAMED else ""
    return f"One command per reply; not run: {', '.join(named)}{more}."


def _short(body: str, limit: int = 40) -> str:
    lines = body.strip().splitlines()
    line = lines[0].strip()
    return line if len(lines) == 1 and len(line) <= limit else line[: limit - 1] + "…"


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks, verbatim."""
    lines = re.split(r"(?<=\n)", text)  # not splitlines(), which knows a dozen other line breaks
    blocks, at = [], 0
    while at < len(lines):
        one_line = _ONE_LINE.fullmatch(lines[at])
        opening = _OPEN.fullmatch(lines[at])
        at += 1
        if one_line:
            blocks.append(_from_one_line(one_line[1]))
        elif opening:
            end = _closing_line(lines, at, len(opening[1]))
            language = opening[2].split(maxsplit=1)[0].lower() if opening[2] else ""
            blocks.append(_Block(language, _body(lines[at:end]), end < len(lines)))
            at = end + 1
    return blocks


def _from_one_line(inside: str) -> _Block:
    """```ls -l``` or ```bash ls -l```, all on one line."""
    first, _, rest = inside.strip().partition(" ")
    language = first if rest.strip() and first.lower() in SHELLS else ""
    return _Block(language.lower(), rest.strip() if language else inside.strip(), True)


def _body(lines: list[str]) -> str:
    """Only the line break in front of the closing fence is not the agent's own."""
    return "".join(lines).removesuffix("\n").removesuffix("\r")


def _closing_line(lines: list[str], start: int, ticks: int) -> int:
    """The line that closes a block; len(lines) if none does. Fences inside a here-document do not count,
    provided that the here-document ends."""
    at = start
    while at < len(lines):
        line = lines[at].strip()
        if len(line) >= ticks and not line.strip("`"):
            return at
        for dash, _, word in _HEREDOC.findall(lines[at]):
            at = _end_of_heredoc(lines, at, word, bool(dash))
        at += 1
    return at


def _end_of_heredoc(lines: list[str], at: int, word: str, tabs: bool) -> int:
    for later in range(at + 1, len(lines)):
        line = lines[later].rstrip("\r\n")
        if (line.lstrip("\t") if tabs else line) == word:
            return later
    return at


# --- tool calls ---------------------------------------------------------------------------------------


def _hermes(text: str, cut: bool) -> list[Action]:
    actions: list[Action] = []
    at = text.find("<tool_call>")
    while at >= 0:
        at += len("<tool_call>")
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = JSON.raw_decode(text, at)
            actions += _calls(value, len(actions))
        except ValueError as error:
            unfinished = cut and "</tool_call>" not in text[at:]
            actions.append(Action("invalid", text=CUT_CALL if unfinished else _malformed(error, at)))
        at = text.find("<tool_call>", at)
    return actions or [Action("invalid", text=CUT_CALL if cut else NO_CALL)]


def _bare_json(text: str, cut: bool, only: bool) -> list[Action]:
    """Calls written as JSON; `only` when nothing else can be meant, so broken JSON is worth a sentence."""
    fenced = [block.body for block in _blocks(text) if block.language in ("json", "")]
    problem: Action | None = None
    for source in [*fenced, text]:
        starts = [match.start(1) for match in re.finditer(r"^[ \t]*([{\[])", source, re.MULTILINE)]
        actions: list[Action] = []
        end = 0
        for start in starts[:JSON_STARTS]:
            if start < end:
                continue  # inside the value read before
            try:
                value, end = JSON.raw_decode(source, start)
            except ValueError as error:
                if only or '"name"' in source[start:]:
                    problem = problem or Action("invalid", text=CUT_CALL if cut else _malformed(error, start))
                continue
            if _looks_like_calls(value):
                actions += _calls(value, len(actions))
        if actions:
            return actions
    return [problem or Action("invalid", text=CUT_CALL if cut else NO_CALL)]


def _looks_like_calls(value: Any) -> bool:
    values = value if isinstance(value, list) and value else [value]
    return all(isinstance(v, dict) and "name" in v and v.keys() & {"arguments", "parameters"} for v in values)


def _calls(value: Any, before: int) -> list[Action]:
    values = value if isinstance(value, list) else [value]
    return [_call(v, f"call_{before + i}") for i, v in enumerate(values)] or [Action("invalid", text=NO_CALL)]


def _call(value: Any, call_id: str) -> Action:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return Action("invalid", text='A tool call is {"name": "…", "arguments": {…}}; "name" is missing.')
    name = value["name"]
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = JSON.decode(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        return Action("invalid", name=name[:60], text=f'"arguments" of {name[:60]} must be a JSON object.')
    return Action("tool", name=name, arguments=arguments, call_id=call_id)


def _malformed(error: Exception, start: int) -> str:
    if isinstance(error, json.JSONDecodeError):
        place = error.pos - start + 1
        return f"Malformed JSON in the tool call, character {place}: {error.msg}. Nothing ran."
    return "Malformed JSON in the tool call: too deep, or a number or character out of range. Nothing ran."


class _StrictDecoder(json.JSONDecoder):
    """JSON whose every value can be written back: no NaN, no infinities, no half characters (\\ud800)."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_finite, parse_float=_finite)

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            value, end = super().raw_decode(s, idx)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        if is_deeper(value, DEEPEST):
            raise ValueError(TOO_DEEP)
        json.dumps(value, ensure_ascii=False).encode()
        return value, end


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is not a finite number")
    return value


JSON = _StrictDecoder()
