from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.rollout_world import chat_tokenizer

from airloop.chat import actions, tool_calls
from airloop.chat.actions import parse
from airloop.chat.tool_calls import PARSERS
from airloop.errors import AirError
from airloop.types import Action


def command(text: str, **more: bool) -> Action:
    (action,), _ = parse(text, "command", **more)
    return action


def tools(text: str, parser: str = "auto", **more: bool) -> list[Action]:
    return parse(text, "tools", parser, **more)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("```\nls\n```", "ls"),
        ("Look:\n```bash\nls -l\ncd x\n```\nthen more", "ls -l\ncd x"),
        ("```bash\r\nls\r\n```", "ls"),
        ("```ls -l```", "ls -l"),
        ("```bash ls -l```", "ls -l"),
        ("````\necho '```'\n````", "echo '```'"),
        ("```bash\n\n  indented\n\n```", "\n  indented\n"),
        ("```\nsubmit", "submit"),
        ("<think>maybe\n```\nrm -r x\n```\n</think>\n```\nls\n```", "ls"),
        ("maybe\n```\nrm -r x\n```\n</think>\n```\nls\n```", "ls"),
        ("The code is\n```python\nx = 1\n```\nso\n```bash\npython x.py\n```", "python x.py"),
        ("```text\nsubmit\n```", "submit"),
        ("```\n```\n```\nls\n```", "ls"),
    ],
)
def test_the_fenced_block_is_the_command(reply: str, wanted: str) -> None:
    assert command(reply) == Action("command", text=wanted)


def test_heredocs_survive_with_fences_inside() -> None:
    body = "cat > README.md <<'EOF'\n# x\n```python\nprint('a')\n```\nEOF\nls"
    assert command(f"```bash\n{body}\n```\nbye").text == body
    tabs = "cat <<-END > f\n\t```\n\tEND\nls"
    assert command(f"```\n{tabs}\n```").text == tabs
    # What only looks like a here-document does not swallow the fence.
    assert command("```\npython -c 'print(1 << x)'\n```\nend").text == "python -c 'print(1 << x)'"


def test_only_the_first_command_runs_and_the_rest_are_named() -> None:  # D3
    (action,), note = parse("```\nls\n```\n```bash\npython train.py\n```\n```\ncat a\ncat b\n```", "command")
    assert action.text == "ls"
    assert note == "One command per reply; not run: `python train.py`, `cat a…`."


def test_a_cut_reply_does_not_run_half_a_command() -> None:
    half = "```bash\nrm -r build && make"
    assert command(half).kind == "command"
    assert command(half, cut=True) == Action("invalid", text=actions.CUT_COMMAND)
    assert command("```\nls\n```\n```\nrm -", cut=True).text == "ls"


def test_B11_a_command_that_was_only_considered_does_not_run() -> None:
    """Cut inside a thought, whether the reply opened it or the template did, at the end of the prompt."""
    thought = "perhaps\n```bash\nrm -r build\n```\nor perhaps"
    for opened, more in (("<think>", {}), ("", {"thinking": True}), ("\n<think>", {"thinking": True})):
        assert command(opened + thought, cut=True, **more) == Action("invalid", text=actions.CUT_THOUGHT)
        assert command(opened + thought, **more) == Action("invalid", text=actions.ONLY_THOUGHT)
        assert command(f"{opened}{thought}</think>\n```\nls\n```", **more).text == "ls"
        assert tools(f"{opened}<tool_call>{CALL}</tool_call>", cut=True, **more)[0].kind == "invalid"
    assert command(thought).text == "rm -r build"  # said, not thought


@pytest.mark.parametrize("reply", ["", "ls -l", "use `ls`", "```\n\n```"])
def test_no_command_teaches_the_form(reply: str) -> None:
    assert command(reply) == Action("invalid", text=actions.NO_COMMAND)


def test_lessons_are_short() -> None:
    lessons = [actions.NO_COMMAND, actions.CUT_COMMAND, tool_calls.NO_CALL, tool_calls.CUT_CALL]
    assert all(len(lesson.split()) <= 18 for lesson in lessons)
    assert all(len(chat_tokenizer().encode(lesson)) < 100 for lesson in lessons)  # bytes


CALL = '{"name": "search", "arguments": {"q": "a </tool_call> b"}}'
WANTED = Action("tool", name="search", arguments={"q": "a </tool_call> b"}, call_id="call_0")


@pytest.mark.parametrize(
    "reply",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"I search.\n<tool_call>{CALL}",
        CALL,
        f"I search.\n{CALL}",
        f"```json\n{CALL}\n```",
        f"[{CALL}]",
        '{"name": "search", "parameters": {"q": "a </tool_call> b"}}',
        json.dumps({"name": "search", "arguments": json.dumps({"q": "a </tool_call> b"})}),
        f"<think>\n<tool_call>{{}}</tool_call>\n</think>\n<tool_call>{CALL}</tool_call>",
    ],
)
def test_tool_calls_in_each_form(reply: str) -> None:
    assert tools(reply) == [WANTED]


def test_several_calls_keep_their_order_and_broken_ones_their_place() -> None:
    text = f'<tool_call>{CALL}</tool_call><tool_call>{{"name": "x" "arguments"}}</tool_call><tool_call>{CALL}'
    first, broken, last = tools(text)
    assert (first.kind, last.kind, last.call_id) == ("tool", "tool", "call_2")
    assert broken.kind == "invalid"
    assert "character 14: Expecting ',' delimiter" in broken.text
    assert [a.name for a in tools(f"{CALL}\n{CALL}")] == ["search", "search"]


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ("The answer is 4.", "No tool call found"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', '"arguments" of f must be a JSON object'),
        ('<tool_call>{"name": "f", "arguments": "{"}</tool_call>', '"arguments" of f must be a JSON object'),
        ('{"name": "f", "arguments": {"x": 1e999}}', "out of range"),
        ('{"name": "f", "arguments": {"x": NaN}}', "out of range"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "out of range"),
        ('{"name": "f", "arguments": {', "Malformed JSON in the tool call, character 29"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(reply: str, part: str) -> None:
    (action,) = tools(reply)
    assert action.kind == "invalid"
    assert part in action.text


def test_a_cut_call_is_not_run() -> None:
    (action,) = tools('<tool_call>{"name": "f", "argum', cut=True)
    assert action == Action("invalid", text=tool_calls.CUT_CALL)


def test_text_is_the_whole_reply_and_unknown_parsers_are_refused() -> None:
    assert parse("<think>a</think>b ", "text") == ([Action("text", text="<think>a</think>b ")], "")
    with pytest.raises(AirError, match="no tool-call parser 'xml'"):
        parse("", "tools", "xml")


PIECES = st.sampled_from(
    ["```", "```bash\n", "\n", "<tool_call>", "</tool_call>", "{", "[", '"name"', ":", '"a"', "}", "]",
     "<<EOF", "EOF", "</think>", "<think>", "\\ud800", "1e999", "\x00", " ", CALL]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(st.text(), st.lists(PIECES, max_size=25).map("".join)),
    format=st.sampled_from(["command", "tools", "text"]),
    parser=st.sampled_from(PARSERS),
    cut=st.booleans(),
)
@example(text="[" * 100_000, format="tools", parser="auto", cut=False)
@example(text="[\n" * 5_000, format="tools", parser="json", cut=False)
@example(text='{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", format="tools", parser="auto", cut=False)
def test_parse_never_raises(text: str, format: str, parser: str, cut: bool) -> None:
    found, note = parse(text, format, parser, cut=cut)  # type: ignore[arg-type]
    assert found
    for action in found:
        json.dumps(dict(action.arguments), allow_nan=False, ensure_ascii=False).encode()
        assert action.kind != "invalid" or 0 < len(action.text) < 200
    assert len(note) < 250
