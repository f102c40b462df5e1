"""Tool calls in a reply's text, in the forms that models learn to write them in:

    hermes        <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>      Hermes, Qwen2.5, Qwen3
    json          {"name": "f", "parameters": {"x": 1}}, bare or fenced            Llama 3, many others
    mistral       [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]               or [TOOL_CALLS]f[ARGS]{"x": 1}
    qwen3_coder   <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
    auto          whichever the reply holds

Never fails: what cannot be read becomes an `invalid` action that says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from airloop.files import is_deeper
from airloop.text.fences import fenced_blocks
from airloop.types import Action

ToolParser = Literal["auto", "hermes", "json", "mistral", "qwen3_coder"]
PARSERS: tuple[str, ...] = get_args(ToolParser)
# What calls begin with, in the forms that have a mark.
HERMES, MISTRAL, XML = "<tool_call>", "[TOOL_CALLS]", "<function="
MARKS = (HERMES, MISTRAL, XML)
# Llama 3 puts this token in front of a call where it has been told of an interpreter.
PYTHON_TAG = "<|python_tag|>"

NO_CALL = 'No tool call found. Write <tool_call>{"name": "…", "arguments": {…}}</tool_call>.'
CUT_CALL = "Your reply was cut off before the tool call ended, so nothing ran. Write less."
NOTHING_CALLED, CUT_OFF = Action("invalid", text=NO_CALL), Action("invalid", text=CUT_CALL)
JSON_STARTS = 20  # places in a reply where JSON is looked for
DEEPEST = 64  # brackets in brackets, in the arguments of a call
TOO_DEEP = "nested too deeply"


def read_calls(text: str, parser: str, cut: bool, tools: Sequence[Mapping[str, Any]] = ()) -> list[Action]:
    """At least one action. `cut`: the reply ended by its length. `tools`: schemas, which say what is a number where
    a form has only text."""
    spoken = text.lstrip().removeprefix(PYTHON_TAG)
    form = _form_of(spoken) if parser == "auto" else parser
    if form == "hermes":
        return _hermes(spoken, cut)
    if form == "mistral":
        return _mistral(spoken, cut)
    if form == "qwen3_coder":
        return _xml(spoken, cut, tools)
    return _bare_json(spoken, cut, only=parser == "json")


def before_calls(text: str) -> str:
    """What is said before the first call; nothing where calls have no mark."""
    places = [at for mark in MARKS if (at := text.find(mark)) >= 0]
    return text[: min(places)].rstrip() if places else ""


def _form_of(text: str) -> str:
    if XML in text and not re.search(r"<tool_call>\s*[\[{]", text):
        return "qwen3_coder"
    return "hermes" if HERMES in text else "mistral" if MISTRAL in text else "json"


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
    return actions or [CUT_OFF if cut else NOTHING_CALLED]


def _mistral(text: str, cut: bool) -> list[Action]:
    """An array of calls after one mark, or a mark, a name and arguments for each."""
    actions: list[Action] = []
    at = text.find(MISTRAL)
    while at >= 0:
        at += len(MISTRAL)
        at += len(text[at:]) - len(text[at:].lstrip())
        named = _NAMED.match(text, at)
        at = named.end() if named else at
        try:
            value, at = JSON.raw_decode(text, at)
            given = {"name": named[1] or named[2], "arguments": value} if named else value
            actions += _calls(given, len(actions))
        except ValueError as error:
            unfinished = cut and MISTRAL not in text[at:]
            actions.append(Action("invalid", text=CUT_CALL if unfinished else _malformed(error, at)))
        at = text.find(MISTRAL, at)
    return actions or [CUT_OFF if cut else NOTHING_CALLED]


_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\][\w-]*)?\s*\[ARGS\]\s*|([\w.-]+)(?=\{)")


def _xml(text: str, cut: bool, tools: Sequence[Mapping[str, Any]]) -> list[Action]:
    types = {str(tool["function"]["name"]): _types(tool) for tool in tools if "function" in tool}
    actions: list[Action] = []
    for found in _FUNCTION.finditer(text):
        name, inside = found["name"].strip(), found["inside"]
        if not found["end"] and cut:
            actions.append(CUT_OFF)
            continue
        said = {key.strip(): _trimmed(value) for key, value in _PARAMETER.findall(inside)}
        arguments = {key: _value(value, types.get(name, {}).get(key, set())) for key, value in said.items()}
        actions += _calls({"name": name, "arguments": arguments}, len(actions))
    return actions or [CUT_OFF if cut else NOTHING_CALLED]


_FUNCTION = re.compile(r"<function=(?P<name>[^>\n]*)>(?P<inside>.*?)(?P<end></function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def _trimmed(said: str) -> str:
    """A value stands on lines of its own: the line breaks around it are not part of it."""
    return said.removeprefix("\n").removesuffix("\n")


def _types(tool: Mapping[str, Any]) -> dict[str, set[str]]:
    """Of each parameter, what it may be; nothing where its schema does not say, or is none that we know."""
    schema = tool["function"].get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found: dict[str, set[str]] = {}
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        several = [one.get(word) for word in ("anyOf", "oneOf")] if isinstance(one, Mapping) else []
        choices = [one, *(choice for listed in several if isinstance(listed, list) for choice in listed)]
        given = [choice.get("type") for choice in choices if isinstance(choice, Mapping)]
        kinds = [kind for own in given for kind in (own if isinstance(own, list) else [own])]
        found[name] = {kind for kind in kinds if isinstance(kind, str)}
    return found


def _value(said: str, kinds: set[str]) -> Any:
    """A text where it may be one; else what the text is as JSON."""
    if "string" in kinds:
        return None if "null" in kinds and said.strip().lower() in ("null", "none") else said
    with contextlib.suppress(ValueError):
        return JSON.decode(said.strip())
    return {"true": True, "false": False, "none": None}.get(said.strip().lower(), said)


def _bare_json(text: str, cut: bool, only: bool) -> list[Action]:
    """Calls written as JSON; `only` when nothing else can be meant, so broken JSON is worth a sentence."""
    fenced = [block.body for block in fenced_blocks(text) if block.language in ("json", "")]
    problem: Action | None = None
    for source in [*fenced, text]:
        starts = [match.start(1) for match in re.finditer(r"^[ \t]*([{\[])", source, re.MULTILINE)]
        actions: list[Action] = []
        end = 0
        for start in starts[:JSON_STARTS]:
            at: int | None = start if start >= end else None  # else inside the value read before
            while at is not None:
                try:
                    value, end = JSON.raw_decode(source, at)
                except ValueError as error:
                    if only or '"name"' in source[at:]:
                        problem = problem or Action("invalid", text=CUT_CALL if cut else _malformed(error, at))
                    break
                if _looks_like_calls(value):
                    actions += _calls(value, len(actions))
                following = _FOLLOWING.match(source, end)
                at = following.end() if following else None
        if actions:
            return actions
    return [problem or (CUT_OFF if cut else NOTHING_CALLED)]


_FOLLOWING = re.compile(r"\s*;\s*(?=[{\[])")  # Llama 3, of several calls


def _looks_like_calls(value: Any) -> bool:
    values = value if isinstance(value, list) and value else [value]
    return all(isinstance(v, dict) and "name" in v and v.keys() & {"arguments", "parameters"} for v in values)


def _calls(value: Any, before: int) -> list[Action]:
    values = value if isinstance(value, list) else [value]
    return [_call(v, f"call_{before + i}") for i, v in enumerate(values)] or [NOTHING_CALLED]


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
