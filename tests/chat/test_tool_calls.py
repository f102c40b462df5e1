"""Tool calls in the forms of several families of models: written, and read back as they were meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.chat.actions import parse
from airloop.chat.tool_calls import CUT_CALL, PARSERS, before_calls
from airloop.types import Action

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{dumped({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


def llama3(calls: Calls) -> str:
    return "<|python_tag|>" + "; ".join(dumped({"name": n, "parameters": a}) for n, a in calls)


def listed(calls: Calls) -> str:
    return f"```json\n{dumped([{'name': n, 'arguments': a} for n, a in calls])}\n```"


def mistral(calls: Calls) -> str:
    return "[TOOL_CALLS] " + dumped(
        [{"name": n, "arguments": a, "id": f"abc{i:06d}"} for i, (n, a) in enumerate(calls)]
    )


def mistral_named(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{n}[ARGS]{dumped(a)}" for n, a in calls)


def mistral_with_ids(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{n}[CALL_ID]abc{i:06d}[ARGS]{dumped(a)}" for i, (n, a) in enumerate(calls))


def xml(calls: Calls) -> str:
    """Strings as they are, all else as JSON."""
    said = []
    for name, arguments in calls:
        given = [
            f"<parameter={k}>\n{v if isinstance(v, str) else dumped(v)}\n</parameter>\n" for k, v in arguments.items()
        ]
        said.append(f"<tool_call>\n<function={name}>\n{''.join(given)}</function>\n</tool_call>")
    return "\n".join(said)


WORDS = st.text(st.characters(exclude_characters="<>\r", exclude_categories=["Cs"]), max_size=12)
KINDS: dict[str, tuple[Any, Any]] = {  # of a parameter: its schema, and values of it
    "text": (
        {"type": "string"},
        st.text(st.characters(exclude_characters="<>\r", exclude_categories=["Cs"]), max_size=12),
    ),
    "digits": ({"type": "string"}, st.integers().map(str)),
    "maybe": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, st.sampled_from(["5", "true", "word"]) | st.none()),
    "count": ({"type": "integer"}, st.integers(-(10**12), 10**12)),
    "share": ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    "flag": ({"type": "boolean"}, st.booleans()),
    "items": ({"type": "array"}, st.lists(st.integers() | st.text("ab é", max_size=3), max_size=3)),
    "table": ({"type": "object"}, st.dictionaries(st.text("ab", min_size=1, max_size=2), st.booleans(), max_size=2)),
}
PROPERTIES = {name: schema for name, (schema, _) in KINDS.items()}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": PROPERTIES},
        },
    }
    for name in ("look_up", "send.mail", "x-1")
]
ARGUMENTS = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in KINDS.items()})
CALLS = st.lists(st.tuples(st.sampled_from(["look_up", "send.mail", "x-1"]), ARGUMENTS), min_size=1, max_size=3)
FORMS: list[tuple[Callable[[Calls], str], str]] = [
    (hermes, "hermes"),
    (llama3, "json"),
    (listed, "json"),
    (mistral, "mistral"),
    (mistral_named, "mistral"),
    (mistral_with_ids, "mistral"),
    (xml, "qwen3_coder"),
]


@pytest.mark.parametrize(("write", "parser"), FORMS, ids=[write.__name__ for write, _ in FORMS])
@given(calls=CALLS)
def test_what_is_written_is_read_back(write: Callable[[Calls], str], parser: str, calls: Calls) -> None:
    wanted = [Action("tool", name=n, arguments=a, call_id=f"call_{i}") for i, (n, a) in enumerate(calls)]
    for asked in (parser, "auto"):
        assert parse(write(calls), "tools", asked, tools=TOOLS)[0] == wanted


@pytest.mark.parametrize(("write", "parser"), FORMS, ids=[write.__name__ for write, _ in FORMS])
def test_a_call_that_was_cut_is_not_run(write: Callable[[Calls], str], parser: str) -> None:
    text = write([("look_up", {"text": "word", "table": {"a": True}})])
    for end in range(len(text) - 1):
        for action in parse(text[:end], "tools", parser, cut=True, tools=TOOLS)[0]:
            whole = action.kind == "tool" and action.arguments == {"text": "word", "table": {"a": True}}
            assert whole or action.kind == "invalid", text[:end]


def test_a_value_keeps_its_own_line_breaks() -> None:
    text = "<function=look_up>\n<parameter=text>\n\n  def f():\n    return 1\n\n</parameter>\n</function>"
    (action,) = parse(text, "tools", tools=TOOLS)[0]
    assert action.arguments == {"text": "\n  def f():\n    return 1\n"}


def test_without_a_schema_a_value_is_what_it_looks_like() -> None:
    text = "<tool_call><function=f><parameter=a>1</parameter><parameter=b>one</parameter><parameter=c>True</parameter>"
    (action,) = parse(text + "</function></tool_call>", "tools")[0]
    assert action.arguments == {"a": 1, "b": "one", "c": True}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[TOOL_CALLS]look_up[ARGS]{broken", "Malformed JSON"),
        ("[TOOL_CALLS]", "Malformed JSON"),
        ("<function=>\n</function>", '"name" is missing'),
        ("I shall call <function", "No tool call found"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    (action,) = parse(text, "tools")[0]
    assert action.kind == "invalid" and said in action.text


def test_what_is_said_before_a_call_is_kept_apart() -> None:
    for call in ("<tool_call>{}", "[TOOL_CALLS]f[ARGS]{}", "<tool_call>\n<function=f>", "<function=f>"):
        assert before_calls(f"Let me see.\n{call}") == "Let me see."
    assert before_calls('{"name": "f"}') == "" and len(PARSERS) == 5 and CUT_CALL
