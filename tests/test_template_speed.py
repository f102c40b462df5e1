"""Chat templates that were made quicker say what they said before, and are shown no more than before."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils import chat_template_utils

from airloop.models.chat import ChatTokenizer
from airloop.models.chat_forms import CHATML
from airloop.models.template_speed import speed_up_template
from airloop.models.tiny import tiny_tokenizer

SCHEMA = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = {"function": {"name": "look", "arguments": {"items": ["a"], "_at": 1}}}
CHAT = [
    {"role": "system", "content": "Look."},
    {"role": "user", "content": "Where?", "name": "{0}"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "there"},
]
LOOPS = "{% for m in messages %}{{ m.role }}{{ m['content'] }}"
TEMPLATES = {
    "chatml": CHATML,
    "how far a loop is": LOOPS + "{{ [loop.first, loop.last, loop.index, loop.index0, loop.length] }}"
    "{{ [loop.revindex, loop.revindex0, loop.depth, loop.previtem, loop.nothing] }}{{ loop.cycle(1, 2) }}{% endfor %}",
    "what is not there": LOOPS + "{{ m.name is defined }}{{ m['tool_calls'] is defined }}{{ m.none }}{% endfor %}",
    "what is not there, of nothing": "{{ messages[0].none.more }}",
    "methods of a dict": LOOPS + "{{ m.items() | list }}{{ m.get('name') }}{{ m['keys'] is defined }}{% endfor %}",
    "items that are named as methods": "{{ tools[0].function.parameters.properties['items'] }}"
    "{{ tools[0].function.parameters.properties.items is callable }}",
    "texts": LOOPS + "{{ m.content.upper() }}{{ m['content'][1:] }}{{ (m.name or '').format(m) }}{% endfor %}",
    "a variable of its own": "{% set s = namespace(n=0) %}" + LOOPS + "{% set s.n = s.n + 1 %}{{ s.n }}{% endfor %}",
    "what is private": LOOPS + "{{ m.__class__ }}{{ loop._iterator }}{{ m['__len__'] }}{% endfor %}",
    "what is private, of a loop": LOOPS + "{{ loop.__class__.__init__.more }}{% endfor %}",
    "a change of a message": "{{ messages[1].update(role='system') }}",
    "a change by its name": "{{ messages[1]['pop']('role') }}",
}


def rendered(template: Any) -> str:
    try:
        return str(template.render(messages=CHAT, tools=[TOOL], add_generation_prompt=True))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_quick_template_says_the_same(name: str) -> None:
    text = TEMPLATES[name]
    plain = chat_template_utils._cached_compile_jinja_template(text)
    for _ in range(2):
        speed_up_template(text)
        quick = chat_template_utils._compile_jinja_template(text)
        assert rendered(quick) == rendered(plain)
        assert type(quick.globals) is dict and quick.environment.getattr is not plain.environment.getattr
    if "change" in name or name in ("what is private, of a loop", "what is not there, of nothing"):
        assert rendered(plain).startswith(("SecurityError", "UndefinedError"))


def test_whoever_renders_a_chat_has_its_template_quick() -> None:
    hf = tiny_tokenizer()
    hf.chat_template = "{# quick #}" + CHATML
    ChatTokenizer(hf, name="tiny")
    assert type(chat_template_utils._compile_jinja_template(hf.chat_template).globals) is dict


def test_a_template_that_transformers_keeps_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    speed_up_template(CHATML)
