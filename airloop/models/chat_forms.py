"""Chats in the form of Hermes and Qwen models: a template for models that bring none, and the same chat for templates
that can do less."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

HERMES_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

CHATML = (
    """{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% endif %}
{%- if system is defined or tools %}
    {{- '<|im_start|>system\\n' + (system if system is defined else '') }}
    {%- if tools %}
        {{- '\\n\\n' if system is defined else '' }}
        {{- """
    + json.dumps(HERMES_TOOLS.split("{tools}")[0])
    + """ }}
        {%- for tool in tools %}{{- tool | tojson }}{{- '' if loop.last else '\\n' }}{%- endfor %}
        {{- """
    + json.dumps(HERMES_TOOLS.split("{tools}")[1].replace("{{", "{").replace("}}", "}"))
    + """ }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}
        {{- '\\n' if loop.index0 and messages[loop.index0 - 1]['role'] == 'tool' else '<|im_start|>user\\n' }}
        {{- '<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {{- '' if not loop.last and messages[loop.index0 + 1]['role'] == 'tool' else '<|im_end|>\\n' }}
    {%- elif not (loop.first and message['role'] == 'system') %}
        {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '\\n' if message['content'] or not loop.first else '' }}
            {%- set arguments = call['function']['arguments'] %}
            {{- '<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
)
"""ChatML with tools in Hermes form: for models whose files bring no template but know its two tokens."""


def with_tools_in_system(chat: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    listing = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    text = HERMES_TOOLS.format(tools=listing)
    if chat and chat[0]["role"] == "system":
        return [{**chat[0], "content": f"{chat[0]['content']}\n\n{text}"}, *chat[1:]]
    return [{"role": "system", "content": text}, *chat]


def without_tool_role(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls become text of the assistant, answers a user message; answers to one reply share a message."""
    out: list[dict[str, Any]] = []
    after_tool = False
    for message in chat:
        is_tool = message["role"] == "tool"
        if is_tool:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if after_tool:
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            out.append({"role": message["role"], "content": calls_as_text(message)})
        else:
            out.append(message)
        after_tool = is_tool
    return out


def calls_as_text(message: Mapping[str, Any]) -> str:
    parts = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):  # what cannot be read is shown as it is
                arguments = json.loads(arguments)
        body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(parts)


def without_system(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not chat or chat[0]["role"] != "system":
        return chat
    system, rest = chat[0], chat[1:]
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": system["content"]}, *rest]


def merge_same_role(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in chat:
        mergeable = message["role"] in ("system", "user") and out and out[-1]["role"] == message["role"]
        if mergeable:
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{message['content']}"}
        else:
            out.append(message)
    return out
